// Python Link of trackmania-rl: lets one Python client drive this game through a TCP port of this machine.
//
// A plugin for TMInterface 2.1 and later; it belongs into the folder TMInterface/Plugins. The messages are those of the
// "Python link" protocol: an int32 id and its payload, little-endian, nothing in front and nothing behind. The game
// reports 1 to 5 and stands still until the client answers with the same id; until then the client may send 6 to 23,
// and 24, which is this plugin's own. docs/plugin.rst says what this plugin promises beyond that.
//
// TMInterface's sockets know no way to ask whether the other end hung up, and a read of bytes that have not come blocks
// the game. So bytes are only read once `Available` has counted them, and a client that fell silent is let go when its
// time is up, or when another client wants its place.
//
// TMInterface's declarations do not say which methods are const, so none is called on anything const here. Nor does its
// documentation say whether ticks still come once the speed is 0, or whether a captured frame is the present one; both
// are looked at ("Frames of a frozen game").

const int LINK_VERSION = 3;  // read by plugin_files.py; raise it with every change of this file, and in messages.py

const string PREFIX = "[Python Link] ";
const string HOST = "127.0.0.1";
const string PORT_VARIABLE = "custom_port";
const double DEFAULT_PORT = 8478.0;
const string VERSION_COMMAND = "python_link_version";
const string MAP_COMMAND = "map ";

const uint DEFAULT_TIMEOUT_MS = 2000;
const uint MAX_PARTIAL_MESSAGE_MS = 10000;    // a message that has begun must be complete within this time
const uint64 NEWCOMER_PATIENCE_MS = 3000;     // a wait longer than this ends when another client stands at the door
const uint64 LISTEN_RETRY_MS = 1000;
const uint64 SPIN_MS = 20;                    // so long an answer is watched for without sleeping
const uint SLEEP_MS = 1;
const int MAX_PAYLOAD_BYTES = 1 << 20;
const int MAX_FRAME_SIDE_PX = 4096;
const int FRAME_BYTES_PER_PIXEL = 4;
const int ANALOG_FULL = 65536;                // a wheel fully turned, a pedal fully pressed
const int MOST_COMPLAINTS = 20;               // logged of one client; noise must not fill the log
const int FIRST_VERSION_BIT = 8;              // of the answer to IsInMenus, once the client asked for the version
const float GREATEST_FLOAT = 3.4e38f;

const int MOST_UNDONE_FRAMES = 3;             // then the frame is taken as it is
const uint MOVING_KM_H = 50;                  // so fast two steps look different
const int LONGEST_BETWEEN_FRAMES_MS = 100;
const int EQUAL_PART = 10;                    // frames are equal that differ by less than this part of what a step does
const int DECISIVE = 5;                       // so many clear cases in a row
const uint MOST_COMPARED_BYTES = 12000;       // of a frame, spread over it

enum Message
{
    RunStep = 1,
    CheckpointCountChanged = 2,
    LapCountChanged = 3,
    RequestedFrame = 4,
    OnConnect = 5,
    SetSpeed = 6,
    RewindToState = 7,
    RewindToCurrentState = 8,
    GetState = 9,
    SetInput = 10,
    GiveUp = 11,
    PreventFinish = 12,
    Shutdown = 13,
    Command = 14,
    SetTimeout = 15,
    RaceFinished = 16,
    RequestFrame = 17,
    ResetCamera = 18,
    SetStepPeriod = 19,
    UnrequestFrame = 20,
    ToggleInterface = 21,
    IsInMenus = 22,
    GetInputs = 23,
    SetAnalogInput = 24
}

// What belongs to one connection, so that nothing of it passes on to the next one.
class Client
{
    Net::Socket@ socket;
    uint timeoutMs = DEFAULT_TIMEOUT_MS;
    uint64 waitBeganMs = 0;
    int frameWidthPx = 0;  // 0: no frame is asked for
    int frameHeightPx = 0;
    int complaints = 0;
    bool asksForVersion = false;
    bool isRewound = false;
    int rewoundTickTimeMs = 0;
    Inputs inputs;
    Hold@ hold = null;     // while the game stands still for a frame
    bool mayHold = false;  // false where the wait's messages take effect a little later
    Frames frames;
}

// What the client set last.
class Inputs
{
    int left = 0;
    int right = 0;
    int up = 0;
    int down = 0;
    int steer = 0;
    int gas = 0;
    bool isAnalog = false;
    bool hasPressedKeys = false;
    bool isNew = false;    // set in this wait, and after all of its rewinds
}

// The moment at which the game was frozen for a frame.
class Hold
{
    SimulationState@ state;
    int tickTimeMs = 0;
    bool hasUndone = false;
    bool hasStepUndone = false;  // since the last frame
    int undoneFrames = 0;
}

enum Delay
{
    Unknown,
    Nothing,
    OneFrame
}

// Whether captured frames come late, as far as known.
class Frames
{
    Delay delay = Delay::Unknown;
    bool isElsewhere = true;           // the client has rewound since the last frame
    int presentInARow = 0;
    int lateInARow = 0;
    array<uint8>@ first = null;        // captured for the present request
    array<uint8>@ delivered = null;    // for the request before
    int deliveredTickTimeMs = 0;
}

Net::Socket@ listener = null;
bool isPortTried = false;
double listenerPort = 0;      // the value of the variable that was tried last
uint64 listenerTriedMs = 0;
Net::Socket@ newcomer = null; // accepted, to be greeted at the next frame
Client@ client = null;

// These two outlive a connection.
int stepPeriodMs = 10;
bool isFrozen = false;

// TMInterface's callbacks.

PluginInfo@ GetPluginInfo()
{
    PluginInfo@ info = PluginInfo();
    info.Name = "Python Link";
    info.Author = "trackmania-rl";
    info.Version = "" + LINK_VERSION;
    info.Description = "Lets a Python program drive the car and see the game.";
    return info;
}

void Main()
{
    RegisterVariable(PORT_VARIABLE, DEFAULT_PORT);
    RegisterCustomCommand(VERSION_COMMAND, "Says which Python Link this is, and who is connected.", OnVersionCommand);
    Say("version " + LINK_VERSION + " loaded");
}

void OnDisabled()
{
    Drop("the plugin is disabled");
    @newcomer = null;
    @listener = null;
}

void Render()
{
    // While the game starts up, the variable may still hold the port of the last session, which may be another game's
    // by now; and nobody can play yet.
    const TM::GameState state = GetCurrentGameState();
    if (state == TM::GameState::None || state == TM::GameState::StartUp)
        return;
    Listen();
    TakeNewcomers(0);
    if (newcomer !is null)
        Greet();
    if (client !is null && client.frameWidthPx > 0 && StandsAsHeld())
        DeliverFrame();
}

void OnRunStep(SimulationManager@ game)
{
    if (client is null || UndoesTick(game) || IsFreshlyRewound(game))
        return;
    client.isRewound = false;
    const int raceTimeMs = game.RaceTime;
    const bool isOver = game.TickTime > raceTimeMs;
    if (!isOver && raceTimeMs % stepPeriodMs != 0)
        return;
    if (Send(Message::RunStep) && Send(raceTimeMs))
        AwaitAnswer(Message::RunStep);
    HoldIfFrozen(game);
}

void OnCheckpointCountChanged(SimulationManager@ game, int current, int target)
{
    ReportCount(game, Message::CheckpointCountChanged, current, target);
}

void OnLapCountChanged(SimulationManager@ game, int current, int target)
{
    ReportCount(game, Message::LapCountChanged, current, target);
}

void OnVersionCommand(int fromTime, int toTime, const string&in commandLine, const array<string>&in args)
{
    const string listening = listener is null ? "not listening" : "listening on port " + int64(listenerPort);
    Say("version " + LINK_VERSION + ", " + listening + (client is null ? ", no client" : ", a client is connected"));
}

// Connections.

void Listen()
{
    const double port = GetVariableDouble(PORT_VARIABLE);
    const uint64 nowMs = Time::Now;
    const bool isFirstTry = !isPortTried || port != listenerPort;
    if (!isFirstTry && (listener !is null || nowMs - listenerTriedMs < LISTEN_RETRY_MS))
        return;
    if (isFirstTry && listener !is null)
    {
        Drop("the variable " + PORT_VARIABLE + " changed");
        @newcomer = null;
        @listener = null;
    }
    isPortTried = true;
    listenerPort = port;
    listenerTriedMs = nowMs;
    if (!(port >= 1 && port <= 65535 && port == double(int(port))))
    {
        if (isFirstTry)
            Blame("variable " + PORT_VARIABLE + " is " + port + "; a whole number from 1 to 65535 is needed");
        return;
    }
    Net::Socket@ socket = Net::Socket();
    if (socket.Listen(HOST, uint16(port)))
    {
        @listener = socket;
        Say("listening on " + HOST + ":" + int64(port));
    }
    else if (isFirstTry)
        Blame("cannot listen on port " + int64(port) + "; is another game using it? Trying again every second");
}

// The latest newcomer takes the place of the earlier ones. Waiting for one is also the only way to sleep.
void TakeNewcomers(uint longestMs)
{
    if (listener is null)
        return;
    Net::Socket@ accepted = listener.Accept(longestMs);
    while (accepted !is null)
    {
        @newcomer = accepted;
        @accepted = listener.Accept(0);
    }
}

void Greet()
{
    Drop("replaced by a newcomer");
    Client@ greeted = Client();
    @greeted.socket = newcomer;
    @newcomer = null;
    greeted.socket.NoDelay = true;
    @client = greeted;
    Say("client connected");
    if (Send(Message::OnConnect))
        AwaitAnswer(Message::OnConnect);
}

// Game speed and step period stay, but a game that only its client could move again is let go.
void Drop(const string&in reason)
{
    if (client is null)
        return;
    Say("client dropped: " + reason);
    @client.socket = null;  // the last handle closes the socket
    @client = null;
    if (isFrozen)
    {
        isFrozen = false;
        GetSimulationManager().SetSpeed(1.0f);
    }
}

// Reports.

void ReportCount(SimulationManager@ game, int id, int current, int target)
{
    if (client is null || IsOfUndoneTick(game))
        return;
    if (Send(id) && Send(current) && Send(target))
        AwaitAnswer(id);
    HoldIfFrozen(game);
}

void DeliverFrame()
{
    const uint wantedBytes = uint(client.frameWidthPx * client.frameHeightPx * FRAME_BYTES_PER_PIXEL);
    vec2 size(float(client.frameWidthPx), float(client.frameHeightPx));
    array<uint8>@ pixels = Graphics::CaptureScreenshot(size);
    const uint gotBytes = pixels is null ? 0 : pixels.Length;
    if (gotBytes != wantedBytes)
    {
        Drop("the game made a frame of " + gotBytes + " bytes where " + wantedBytes + " were asked for");
        return;
    }
    if (isFrozen && !IsPresent(pixels))
        return;
    if (!Send(Message::RequestedFrame) || !Send(pixels))
        return;
    AwaitAnswer(Message::RequestedFrame);
    if (client is null)
        return;
    client.frameWidthPx = 0;  // only now: a request made during the frame's own wait is lost
    @client.hold = null;
}

bool Send(int value)
{
    return client !is null && IsSent(client.socket.Write(value));
}

bool Send(const array<uint8>@ bytes)
{
    return client !is null && IsSent(client.socket.Write(bytes));
}

bool IsSent(bool success)
{
    if (!success)
        Drop("connection lost");
    return success;
}

// Do what the client says until it answers, goes, or its time is up.
void AwaitAnswer(int id)
{
    client.waitBeganMs = Time::Now;
    client.mayHold = true;
    client.inputs.isNew = false;
    int received = 0;
    while (ReadId(received))
    {
        if (received == id)
            return;
        Obey(received, id);
    }
}

// Frames of a frozen game. The client freezes it in a step and asks for a frame, which must show that step. Ticks that
// come although the speed is 0 are undone: by the next step, and after the last of them by the next frame.

void HoldIfFrozen(SimulationManager@ game)
{
    if (client is null)
        return;
    @client.hold = null;
    if (!isFrozen || client.frameWidthPx == 0 || !client.mayHold || !game.InRace)
        return;
    Hold@ hold = Hold();
    @hold.state = game.SaveState();
    hold.tickTimeMs = game.TickTime;
    @client.hold = hold;
}

// Whether a step is one of a game that shall stand still; nobody is told of it. A rewind more does no harm, while the
// clock may still be the one before the last rewind.
bool UndoesTick(SimulationManager@ game)
{
    if (client.hold is null)
        return false;
    Undo(game);
    client.hold.hasStepUndone = true;
    return true;
}

bool IsOfUndoneTick(SimulationManager@ game)
{
    return client.hold !is null && (client.hold.hasUndone || game.TickTime != client.hold.tickTimeMs);
}

bool StandsAsHeld()
{
    SimulationManager@ game = GetSimulationManager();
    Hold@ hold = client.hold;
    if (hold is null || !game.InRace || hold.undoneFrames == MOST_UNDONE_FRAMES)
        return true;
    if (!hold.hasStepUndone && game.TickTime == hold.tickTimeMs)
        return true;
    Undo(game);
    hold.hasStepUndone = false;
    hold.undoneFrames++;
    return false;
}

void Undo(SimulationManager@ game)
{
    client.hold.hasUndone = true;
    @client.frames.first = null;
    const bool arePressed = client.inputs.isNew;
    Rewind(game, client.hold.state);
    if (arePressed)
        Press(game);
    client.hold.tickTimeMs = client.rewoundTickTimeMs;
}

// Until it is known that frames do not come late, and after each rewind, a second one is captured; it shows the same
// moment, since the game stands still. A first one that differs from it as much as the step before does is of that step.
bool IsPresent(array<uint8>@ pixels)
{
    Frames@ frames = client.frames;
    if (frames.delay == Delay::Nothing && !frames.isElsewhere)
        return true;
    if (frames.first is null)
    {
        @frames.first = pixels;
        return false;
    }
    SimulationManager@ game = GetSimulationManager();
    if (frames.delay == Delay::Unknown && game.InRace)
    {
        const int sinceDeliveredMs = game.TickTime - frames.deliveredTickTimeMs;
        TM::PlayerInfo@ player = game.PlayerInfo;
        const bool isMoving = player !is null && player.DisplaySpeed >= MOVING_KM_H;
        const bool isUndisturbed = client.hold !is null && !client.hold.hasUndone;
        if (isUndisturbed && isMoving && sinceDeliveredMs > 0 && sinceDeliveredMs <= LONGEST_BETWEEN_FRAMES_MS)
            Judge(Difference(frames.first, pixels), Difference(frames.delivered, pixels));
        @frames.delivered = pixels;
        frames.deliveredTickTimeMs = game.TickTime;
    }
    @frames.first = null;
    frames.isElsewhere = false;
    return true;
}

// Several of one kind in a row decide; one of another kind, or an unclear one, begins anew.
void Judge(int firstDiffers, int deliveredDiffers)
{
    Frames@ frames = client.frames;
    const bool isPresent = EQUAL_PART * firstDiffers < deliveredDiffers;
    const bool isLate = deliveredDiffers > 0 && 2 * firstDiffers > deliveredDiffers;
    frames.presentInARow = isPresent ? frames.presentInARow + 1 : 0;
    frames.lateInARow = isLate ? frames.lateInARow + 1 : 0;
    if (frames.presentInARow == DECISIVE)
        frames.delay = Delay::Nothing;
    if (frames.lateInARow != DECISIVE)
        return;
    frames.delay = Delay::OneFrame;
    Say("the game's frames come one late; each is waited for");
}

int Difference(array<uint8>@ one, array<uint8>@ other)
{
    if (one is null || other is null || one.Length != other.Length)
        return 0;
    const uint stride = one.Length / MOST_COMPARED_BYTES * 2 + 1;  // odd, so that all colours have their turn
    int sum = 0;
    for (uint i = 0; i < one.Length; i += stride)
    {
        const int difference = int(one[i]) - int(other[i]);
        sum += difference < 0 ? -difference : difference;
    }
    return sum;
}

// Reading. Each function drops the client and says so where the bytes do not come.

// The timeout counts from the wait's beginning and matters only when nothing has come.
bool ReadId(int&out id)
{
    id = 0;
    if (client is null)
        return false;
    if (Time::Now - client.waitBeganMs > NEWCOMER_PATIENCE_MS && KeepsNewcomerWaiting(0))
        return false;
    return HasCome(1, client.waitBeganMs + client.timeoutMs, "did not answer in time") && ReadInt(id);
}

bool ReadInt(int&out value)
{
    value = 0;
    if (!HasCome(4, PartDeadlineMs(), "sent half a message"))
        return false;
    value = client.socket.ReadInt32();
    return true;
}

bool ReadLength(int&out length)
{
    if (!ReadInt(length))
        return false;
    if (length < 0 || length > MAX_PAYLOAD_BYTES)
    {
        // Where the next message begins is unknown now.
        Drop("sent a length of " + length + " bytes; 0 to " + MAX_PAYLOAD_BYTES + " are allowed");
        return false;
    }
    return true;
}

// Longer than what the system keeps for a reader, perhaps: so it is taken as it comes.
array<uint8>@ ReadBytes()
{
    int length = 0;
    if (!ReadLength(length))
        return null;
    array<uint8>@ bytes = array<uint8>();
    const uint64 deadlineMs = PartDeadlineMs();
    while (int(bytes.Length) < length)
    {
        if (!HasCome(1, deadlineMs, "sent half a message"))
            return null;
        const uint count = SmallerOf(client.socket.Available, length - bytes.Length);
        array<uint8>@ part = client.socket.ReadBytes(count);
        if (part is null || part.Length != count)
        {
            Drop("connection lost");
            return null;
        }
        if (bytes.Length == 0)
        {
            @bytes = part;
            continue;
        }
        const uint filled = bytes.Length;
        bytes.Resize(filled + count);
        for (uint i = 0; i < count; i++)
            bytes[filled + i] = part[i];
    }
    return bytes;
}

bool ReadText(string&out text)
{
    text = "";
    int length = 0;
    if (!ReadLength(length))
        return false;
    const uint64 deadlineMs = PartDeadlineMs();
    while (int(text.Length) < length)
    {
        if (!HasCome(1, deadlineMs, "sent half a message"))
            return false;
        const uint count = SmallerOf(client.socket.Available, length - text.Length);
        string part = client.socket.ReadString(count);
        if (part.Length != count)
        {
            Drop("connection lost");
            return false;
        }
        text += part;
    }
    return true;
}

uint64 PartDeadlineMs()
{
    return Time::Now + SmallerOf(client.timeoutMs, MAX_PARTIAL_MESSAGE_MS);
}

bool HasCome(uint count, uint64 deadlineMs, const string&in otherwise)
{
    uint64 nowMs = Time::Now;
    const uint64 sleepFromMs = nowMs + SPIN_MS;
    while (client.socket.Available < count)
    {
        nowMs = Time::Now;
        if (nowMs >= deadlineMs)
        {
            Drop(otherwise);
            return false;
        }
        if (nowMs >= sleepFromMs && KeepsNewcomerWaiting(SLEEP_MS))
            return false;
    }
    return true;
}

bool KeepsNewcomerWaiting(uint sleepMs)
{
    TakeNewcomers(sleepMs);
    if (newcomer is null || Time::Now - client.waitBeganMs <= NEWCOMER_PATIENCE_MS)
        return false;
    Drop("kept a newcomer waiting");
    return true;
}

uint SmallerOf(uint a, uint b)
{
    return a < b ? a : b;
}

// Messages of the client.

void Obey(int id, int awaited)
{
    SimulationManager@ game = GetSimulationManager();
    switch (id)
    {
    case Message::SetSpeed: ObeySetSpeed(game); break;
    case Message::RewindToState: ObeyRewindToState(game); break;
    case Message::RewindToCurrentState:
        if (game.InRace)
            Rewind(game, game.SaveState());
        break;
    case Message::GetState: ObeyGetState(game); break;
    case Message::SetInput: ObeySetInput(game); break;
    case Message::SetAnalogInput: ObeySetAnalogInput(game); break;
    case Message::GiveUp:
        if (game.InRace)
            game.GiveUp();
        client.mayHold = false;
        break;
    case Message::PreventFinish:
        if (game.InRace)
            game.PreventSimulationFinish();
        break;
    case Message::Shutdown: Drop("said goodbye"); break;
    case Message::Command: ObeyCommand(); break;
    case Message::SetTimeout: ObeySetTimeout(); break;
    case Message::RaceFinished: Send(IsRaceOver(game) ? 1 : 0); break;
    case Message::RequestFrame: ObeyRequestFrame(); break;
    case Message::ResetCamera: game.ResetCamera(); break;
    case Message::SetStepPeriod: ObeySetStepPeriod(); break;
    case Message::UnrequestFrame: client.frameWidthPx = 0; break;
    case Message::ToggleInterface: ObeyToggleInterface(); break;
    case Message::IsInMenus: ObeyIsInMenus(); break;
    case Message::GetInputs: ObeyGetInputs(game); break;
    default: Complain("sent message " + id + " while " + awaited + " is to be answered; skipped");
    }
}

void ObeySetSpeed(SimulationManager@ game)
{
    if (!HasCome(4, PartDeadlineMs(), "sent half a message"))
        return;
    const float speed = client.socket.ReadFloat();
    if (!(speed >= 0.0f && speed <= GREATEST_FLOAT))  // this way round NaN is refused too
    {
        Complain("game speed " + speed + " refused; 0 or more and finite is allowed");
        return;
    }
    isFrozen = speed == 0.0f;
    game.SetSpeed(speed);
    if (!isFrozen)
        @client.hold = null;
}

void ObeyRewindToState(SimulationManager@ game)
{
    array<uint8>@ blob = ReadBytes();
    if (blob is null || !game.InRace)
        return;
    string flaw = FlawOf(blob);
    if (flaw.Length > 0)
    {
        Complain("rewind refused: state of " + blob.Length + " bytes " + flaw);
        return;
    }
    Rewind(game, SimulationState(blob));
    client.frames.isElsewhere = true;
}

void ObeyGetState(SimulationManager@ game)
{
    if (!game.InRace)
    {
        Send(0);
        return;
    }
    array<uint8>@ blob = game.SaveState().ToArray();
    if (Send(int(blob.Length)))
        Send(blob);
}

void ObeySetInput(SimulationManager@ game)
{
    if (!HasCome(4, PartDeadlineMs(), "sent half a message"))
        return;
    Inputs@ inputs = client.inputs;
    inputs.left = client.socket.ReadUint8() > 0 ? 1 : 0;
    inputs.right = client.socket.ReadUint8() > 0 ? 1 : 0;
    inputs.up = client.socket.ReadUint8() > 0 ? 1 : 0;
    inputs.down = client.socket.ReadUint8() > 0 ? 1 : 0;
    inputs.isAnalog = false;
    if (game.InRace)
        Press(game);
}

void ObeySetAnalogInput(SimulationManager@ game)
{
    int steer = 0;
    int gas = 0;
    if (!ReadInt(steer) || !ReadInt(gas) || !HasCome(1, PartDeadlineMs(), "sent half a message"))
        return;
    const int brake = client.socket.ReadUint8() > 0 ? 1 : 0;
    if (steer < -ANALOG_FULL || steer > ANALOG_FULL || gas < -ANALOG_FULL || gas > ANALOG_FULL)
    {
        const string range = -ANALOG_FULL + " to " + ANALOG_FULL;
        Complain("steer " + steer + ", gas " + gas + " refused; " + range + " is allowed");
        return;
    }
    Inputs@ inputs = client.inputs;
    inputs.steer = steer;
    inputs.gas = gas;
    inputs.down = brake;
    inputs.isAnalog = true;
    if (game.InRace)
        Press(game);
}

// A wheel that is turned while a key changes hardly counts, so the other keys are let go only where they were used.
void Press(SimulationManager@ game)
{
    Inputs@ inputs = client.inputs;
    inputs.isNew = true;
    if (inputs.isAnalog)
    {
        game.SetInputState(InputType::Steer, inputs.steer);
        game.SetInputState(InputType::Gas, inputs.gas);
        game.SetInputState(InputType::Down, inputs.down);
        if (!inputs.hasPressedKeys)
            return;
    }
    const bool isKeys = !inputs.isAnalog;
    game.SetInputState(InputType::Left, isKeys ? inputs.left : 0);
    game.SetInputState(InputType::Right, isKeys ? inputs.right : 0);
    game.SetInputState(InputType::Up, isKeys ? inputs.up : 0);
    if (isKeys)
        game.SetInputState(InputType::Down, inputs.down);
    inputs.hasPressedKeys = isKeys;
}

// A client that knows this plugin sends the version's command and then IsInMenus, whose answer carries our version in
// its higher bits, once. Older plugins know no such command and answer 0 or 1, and so do we to clients that do not ask.
void ObeyCommand()
{
    string text;
    if (!ReadText(text))
        return;
    if (text.FindFirst(VERSION_COMMAND) == 0)
    {
        client.asksForVersion = true;
        return;
    }
    if (text.FindFirst(MAP_COMMAND) >= 0)
        client.mayHold = false;
    CommandList commands;
    commands.Content = text;
    commands.Process(CommandListProcessOption::ExecuteImmediately);
}

void ObeyIsInMenus()
{
    int answer = GetCurrentGameState() == TM::GameState::Menus ? 1 : 0;
    if (client.asksForVersion)
        answer |= LINK_VERSION << FIRST_VERSION_BIT;
    client.asksForVersion = false;
    Send(answer);
}

void ObeySetTimeout()
{
    if (HasCome(4, PartDeadlineMs(), "sent half a message"))
        client.timeoutMs = client.socket.ReadUint32();
}

void ObeyRequestFrame()
{
    int widthPx = 0;
    int heightPx = 0;
    if (!ReadInt(widthPx) || !ReadInt(heightPx))
        return;
    if (widthPx < 1 || widthPx > MAX_FRAME_SIDE_PX || heightPx < 1 || heightPx > MAX_FRAME_SIDE_PX)
    {
        const string sides = widthPx + " x " + heightPx;
        Complain("frame of " + sides + " px refused; sides are 1 to " + MAX_FRAME_SIDE_PX + " px");
        return;
    }
    client.frameWidthPx = widthPx;
    client.frameHeightPx = heightPx;
    @client.frames.first = null;
}

void ObeySetStepPeriod()
{
    int periodMs = 0;
    if (!ReadInt(periodMs))
        return;
    if (periodMs > 0)
        stepPeriodMs = periodMs;
    else
        Complain("step period of " + periodMs + " ms refused; it must be above 0");
}

void ObeyToggleInterface()
{
    int shown = 0;
    if (ReadInt(shown))
        ToggleRaceInterface(shown > 0);
}

void ObeyGetInputs(SimulationManager@ game)
{
    string script = game.InRace ? game.InputEvents.ToCommandsText() : "";
    if (Send(int(script.Length)) && script.Length > 0)
        IsSent(client.socket.Write(script));
}

// The clocks may still be those of before. Where steps come before their ticks, the next step is the one that was
// rewound to, in which the client has had its say.
void Rewind(SimulationManager@ game, SimulationState@ state)
{
    game.RewindToState(state);
    client.isRewound = true;
    client.rewoundTickTimeMs = game.TickTime;
    client.inputs.isNew = false;
}

bool IsFreshlyRewound(SimulationManager@ game)
{
    return client.isRewound && game.TickTime == client.rewoundTickTimeMs;
}

bool IsRaceOver(SimulationManager@ game)
{
    if (game.TickTime > game.RaceTime && !IsFreshlyRewound(game))
        return true;
    TM::PlayerInfo@ player = game.PlayerInfo;
    return player !is null && player.RaceFinished;
}

// State blobs. A wrong one could take the game down, so its shape and the numbers that move the car are looked at.

const uint BLOB_FIXED_BYTES = 8356;
const uint STATE_COUNT_OFFSET = 8348;
const uint CHECKPOINT_STATE_BYTES = 4;
const uint CHECKPOINT_TIME_BYTES = 8;
const uint ROTATION_OFFSET = 688;          // 9 floats, followed by position and velocity with 3 each
const uint MOTION_FLOATS = 15;
const uint ANGULAR_VELOCITY_OFFSET = 760;  // 3 floats
const uint EXPONENT_BITS = 0x7F800000;     // all set: infinite, or not a number

string FlawOf(array<uint8>@ blob)
{
    if (blob.Length < BLOB_FIXED_BYTES)
        return "is too short; " + BLOB_FIXED_BYTES + " and more are possible";
    const uint states = WordAt(blob, STATE_COUNT_OFFSET);
    if (states > (blob.Length - BLOB_FIXED_BYTES) / CHECKPOINT_STATE_BYTES)
        return "claims " + states + " checkpoint states";
    const uint timesOffset = BLOB_FIXED_BYTES + CHECKPOINT_STATE_BYTES * states;
    const uint times = WordAt(blob, timesOffset - 4);
    const uint timesBytes = blob.Length - timesOffset;
    if (timesBytes % CHECKPOINT_TIME_BYTES != 0 || times != timesBytes / CHECKPOINT_TIME_BYTES)
        return "claims " + states + " checkpoint states and " + times + " times";
    if (!AreFinite(blob, ROTATION_OFFSET, MOTION_FLOATS) || !AreFinite(blob, ANGULAR_VELOCITY_OFFSET, 3))
        return "holds numbers that are not finite";
    return "";
}

uint WordAt(array<uint8>@ blob, uint offset)
{
    uint word = 0;
    for (uint i = 4; i > 0; i--)
        word = word << 8 | blob[offset + i - 1];
    return word;
}

bool AreFinite(array<uint8>@ blob, uint offset, uint count)
{
    for (uint i = 0; i < count; i++)
    {
        if ((WordAt(blob, offset + 4 * i) & EXPONENT_BITS) == EXPONENT_BITS)
            return false;
    }
    return true;
}

// Log.

void Say(const string&in text)
{
    log(PREFIX + text, Severity::Info);
}

void Blame(const string&in text)
{
    log(PREFIX + text, Severity::Error);
}

void Complain(const string&in text)
{
    client.complaints++;
    if (client.complaints > MOST_COMPLAINTS)
        return;
    const string last = client.complaints < MOST_COMPLAINTS ? "" : "; no more will be logged of this client";
    log(PREFIX + "client " + text + last, Severity::Warning);
}
