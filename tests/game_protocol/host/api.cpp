// The part of TMInterface's script API that the plugin uses, as TMInterface declares it.

#include "host.h"
#include "registry.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

using namespace AngelScript;

namespace {

// Reference counting for the types that scripts create.
class Counted {
public:
    virtual ~Counted() = default;
    void add_ref() { ++references_; }
    void release() {
        if (--references_ == 0) delete this;
    }

private:
    int references_ = 1;
};

struct PluginInfo : Counted {
    std::string author, name, description, version;
};

struct SimulationState : Counted {
    std::vector<uint8_t> bytes;
};

struct CommandList : Counted {
    std::string content;
};

struct Vec2 {
    float x, y;
};

struct PlayerInfo {
    bool race_finished;
    uint32_t display_speed_km_h;
};

struct RaceClock {
    int32_t in_race, race_time_ms, tick_time_ms, is_finished, speed_km_h;
};

// Single objects of the game; the script only ever holds handles to them.
struct Unique {} simulation_manager, input_events;
PlayerInfo player_info;

RaceClock race_clock() {
    RaceClock clock{};
    game.race_clock(&clock.in_race, &clock.race_time_ms, &clock.tick_time_ms, &clock.is_finished,
                    &clock.speed_km_h);
    return clock;
}

template <typename T>
T* make() {
    return new T();
}

SimulationState* make_state(const CScriptArray& bytes) {
    auto* state = new SimulationState();
    const auto* begin = static_cast<const uint8_t*>(const_cast<CScriptArray&>(bytes).GetBuffer());
    state->bytes.assign(begin, begin + bytes.GetSize());
    return state;
}

CScriptArray* state_to_array(SimulationState* state) {
    CScriptArray* bytes = new_byte_array(static_cast<asUINT>(state->bytes.size()));
    std::memcpy(bytes->GetBuffer(), state->bytes.data(), state->bytes.size());
    return bytes;
}

SimulationState* save_state(Unique*) {
    auto* state = new SimulationState();
    state->bytes.resize(MOST_BLOB_BYTES);
    state->bytes.resize(static_cast<size_t>(game.save_state(state->bytes.data(), MOST_BLOB_BYTES)));
    return state;
}

void rewind_to_state(const SimulationState& state, bool, Unique*) {
    game.restore_state(state.bytes.data(), static_cast<int32_t>(state.bytes.size()));
}

int race_time(Unique*) { return race_clock().race_time_ms; }
int tick_time(Unique*) { return race_clock().tick_time_ms; }
bool in_race(Unique*) { return race_clock().in_race != 0; }
void set_speed(float speed, Unique*) { game.set_speed(speed); }
void set_input_state(int input_type, int value, Unique*) { game.set_input(input_type, value); }
void give_up(Unique*) { game.give_up(); }
void prevent_finish(Unique*) { game.prevent_finish(); }
void reset_camera(Unique*) { game.reset_camera(); }
Unique* get_input_events(Unique*) { return &input_events; }
Unique* get_simulation_manager() { return &simulation_manager; }

PlayerInfo* get_player_info(Unique*) {
    const RaceClock clock = race_clock();
    player_info.race_finished = clock.is_finished != 0;
    player_info.display_speed_km_h = static_cast<uint32_t>(clock.speed_km_h);
    return clock.in_race ? &player_info : nullptr;
}

std::string to_commands_text(int, Unique*) {
    std::string text(MOST_BLOB_BYTES, '\0');
    text.resize(static_cast<size_t>(game.input_script(text.data(), MOST_BLOB_BYTES)));
    return text;
}

void process(int, CommandList* list) {
    game.run_command(list->content.data(), static_cast<int32_t>(list->content.size()));
}
void set_content(const std::string& content, CommandList* list) { list->content = content; }

CScriptArray* capture_screenshot(Vec2& size) {
    const auto width_px = static_cast<int32_t>(size.x);
    const auto height_px = static_cast<int32_t>(size.y);
    CScriptArray* pixels = new_byte_array(static_cast<asUINT>(width_px * height_px * 4));
    game.capture(static_cast<uint8_t*>(pixels->GetBuffer()), width_px, height_px);
    return pixels;
}

uint64_t now_ms() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

int game_state() { return game.game_state(); }
void toggle_interface(bool visible) { game.toggle_interface(visible ? 1 : 0); }

void log(const std::string& text, int severity) { game.log(text.c_str(), severity); }

bool register_variable(const std::string& name, double value) {
    registered_variables[name] = true;
    variables.emplace(name, value);  // a value stored in an earlier session wins
    return true;
}

double get_variable(const std::string& name) { return registered_variables.count(name) ? variables[name] : 0.0; }

void register_custom_command(const std::string& name, const std::string&, asIScriptFunction* callback) {
    custom_commands[name] = callback;
}

void construct_vec2(float x, float y, Vec2* memory) { new (memory) Vec2{x, y}; }

void destruct_vec2(Vec2*) {}

// Only TMInterface's names for arrays: what the add-on calls `length()` is not there, as in the game.
void add_arrays(Repertoire& repertoire) {
    const auto method = [&](const char* text, const asSFuncPtr& function) {
        repertoire.method("array", text, function, asCALL_THISCALL);
    };
    repertoire.array(asMETHOD(CScriptArray, AddRef), asMETHOD(CScriptArray, Release));
    repertoire.constructor("array", "array()", asFUNCTIONPR(CScriptArray::Create, (asITypeInfo*), CScriptArray*));
    repertoire.constructor("array", "array(uint size)",
                           asFUNCTIONPR(CScriptArray::Create, (asITypeInfo*, asUINT), CScriptArray*));
    method("T& opIndex(uint index)", asMETHODPR(CScriptArray, At, (asUINT), void*));
    method("const T& opIndex(uint index)", asMETHODPR(CScriptArray, At, (asUINT) const, const void*));
    method("array<T>& opAssign(const array<T>&in value)", asMETHOD(CScriptArray, operator=));
    method("void Add(const T&in value)", asMETHOD(CScriptArray, InsertLast));
    method("void Resize(uint length)", asMETHODPR(CScriptArray, Resize, (asUINT), void));
    method("bool IsEmpty()", asMETHOD(CScriptArray, IsEmpty));
    method("uint get_Length()", asMETHOD(CScriptArray, GetSize));
}

template <typename T>
void add_counted(Repertoire& repertoire, const std::string& name) {
    repertoire.counted("", name, asMETHOD(T, add_ref), asMETHOD(T, release));
    repertoire.constructor(name, name + "()", asFUNCTION(make<T>));
}

void add_enums(Repertoire& repertoire) {
    repertoire.enumeration("", "Severity", {"Info = 0", "Success = 1", "Warning = 2", "Error = 3"});
    repertoire.enumeration("", "InputType",
                           {"None = -1", "Down = 0", "Up = 1", "Left = 2", "Right = 3", "Steer = 4", "Gas = 5",
                            "Respawn = 6", "GiveUp = 7", "Horn = 8", "FakeFinish = 9"});
    repertoire.enumeration("", "CommandListProcessOption",
                           {"OnlyParse = 0", "QueueAndExecute = 1", "ExecuteImmediately = 2"});
    repertoire.enumeration("", "InputFormatFlags",
                           {"None = 0", "DecimalTime = 1", "SeperateRelease = 2", "Default = 4"});
    repertoire.enumeration("TM", "GameState",
                           {"None = 0", "StartUp = 16", "Menus = 32", "LocalInit = 128", "LocalRace = 512"});
}

void add_functions(Repertoire& repertoire) {
    repertoire.funcdef("void OnCustomCommand(int fromTime, int toTime, const string&in commandLine, "
                       "const array<string>&in args)");
    repertoire.function("Time", "uint64 get_Now()", asFUNCTION(now_ms));
    repertoire.function("Graphics", "array<uint8>@ CaptureScreenshot(vec2&inout size)", asFUNCTION(capture_screenshot));
    const auto function = [&](const char* text, const asSFuncPtr& pointer) { repertoire.function("", text, pointer); };
    function("void log(const string&in str, Severity severity = Severity::Info)", asFUNCTION(log));
    function("bool RegisterVariable(const string&in name, double defaultVal)", asFUNCTION(register_variable));
    function("double GetVariableDouble(const string&in name)", asFUNCTION(get_variable));
    function("void RegisterCustomCommand(const string&in name, const string&in description, OnCustomCommand@ callback)",
             asFUNCTION(register_custom_command));
    function("TM::GameState GetCurrentGameState()", asFUNCTION(game_state));
    function("SimulationManager@ GetSimulationManager()", asFUNCTION(get_simulation_manager));
    function("void ToggleRaceInterface(bool visible)", asFUNCTION(toggle_interface));
}

void add_simulation(Repertoire& repertoire) {
    repertoire.single("TM", "PlayerInfo");
    repertoire.property("TM::PlayerInfo", "bool RaceFinished", asOFFSET(PlayerInfo, race_finished));
    repertoire.property("TM::PlayerInfo", "uint DisplaySpeed", asOFFSET(PlayerInfo, display_speed_km_h));
    repertoire.single("TM", "InputEventBuffer");
    repertoire.method("TM::InputEventBuffer", "string ToCommandsText(InputFormatFlags flags = InputFormatFlags::Default)",
                      asFUNCTION(to_commands_text));

    add_counted<SimulationState>(repertoire, "SimulationState");
    repertoire.constructor("SimulationState", "SimulationState(const array<uint8>&in array)", asFUNCTION(make_state));
    repertoire.method("SimulationState", "array<uint8>@ ToArray()", asFUNCTION(state_to_array));

    repertoire.single("", "SimulationManager");
    const auto method = [&](const char* text, const asSFuncPtr& function) {
        repertoire.method("SimulationManager", text, function);
    };
    method("int get_RaceTime()", asFUNCTION(race_time));
    method("int get_TickTime()", asFUNCTION(tick_time));
    method("bool get_InRace()", asFUNCTION(in_race));
    method("TM::PlayerInfo@ get_PlayerInfo()", asFUNCTION(get_player_info));
    method("TM::InputEventBuffer@ get_InputEvents()", asFUNCTION(get_input_events));
    method("void SetSpeed(float speed)", asFUNCTION(set_speed));
    method("void SetInputState(InputType state, int value)", asFUNCTION(set_input_state));
    method("void GiveUp()", asFUNCTION(give_up));
    method("void PreventSimulationFinish()", asFUNCTION(prevent_finish));
    method("void ResetCamera()", asFUNCTION(reset_camera));
    method("SimulationState@ SaveState()", asFUNCTION(save_state));
    method("void RewindToState(const SimulationState&in state, bool resetCamera = true)", asFUNCTION(rewind_to_state));
}

void add_other_types(Repertoire& repertoire) {
    repertoire.copied("vec2", sizeof(Vec2), asGetTypeTraits<Vec2>() | asOBJ_APP_CLASS_ALLFLOATS,
                      asFUNCTION(destruct_vec2));
    repertoire.constructor("vec2", "vec2(float x, float y)", asFUNCTION(construct_vec2), asCALL_CDECL_OBJLAST);

    add_counted<CommandList>(repertoire, "CommandList");
    repertoire.method("CommandList", "void set_Content(const string&in content)", asFUNCTION(set_content));
    repertoire.method("CommandList",
                      "void Process(CommandListProcessOption option = CommandListProcessOption::QueueAndExecute)",
                      asFUNCTION(process));

    add_counted<PluginInfo>(repertoire, "PluginInfo");
    repertoire.property("PluginInfo", "string Author", asOFFSET(PluginInfo, author));
    repertoire.property("PluginInfo", "string Name", asOFFSET(PluginInfo, name));
    repertoire.property("PluginInfo", "string Description", asOFFSET(PluginInfo, description));
    repertoire.property("PluginInfo", "string Version", asOFFSET(PluginInfo, version));
}

}  // namespace

void* the_simulation_manager() { return &simulation_manager; }

void register_api(asIScriptEngine* engine, const std::string& declarations) {
    Repertoire repertoire;
    add_arrays(repertoire);
    add_strings(repertoire);
    add_other_types(repertoire);
    add_enums(repertoire);
    add_sockets(repertoire);
    add_simulation(repertoire);
    add_functions(repertoire);
    repertoire.register_in(engine, declarations_of(declarations));
    register_literals(engine);
}
