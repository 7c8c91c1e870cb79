// The part of TMInterface's script API that the plugin uses, under the names and types that its documentation gives.

#include "host.h"

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
};

struct RaceClock {
    int32_t in_race, race_time_ms, tick_time_ms, is_finished;
};

// Single objects of the game; the script only ever holds handles to them.
struct Unique {} simulation_manager, input_events;
PlayerInfo player_info;

RaceClock race_clock() {
    RaceClock clock{};
    game.race_clock(&clock.in_race, &clock.race_time_ms, &clock.tick_time_ms, &clock.is_finished);
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

uint32_t string_length(const std::string* text) { return static_cast<uint32_t>(text->size()); }
int find_first(const std::string& part, uint32_t start, const std::string* text) {
    const size_t at = text->find(part, start);
    return at == std::string::npos ? -1 : static_cast<int>(at);
}

// Only TMInterface's names for arrays: what the add-on calls `length()` is not there, as in the game.
void register_arrays(asIScriptEngine* engine) {
    const auto behaviour = [engine](asEBehaviours kind, const char* declaration, const asSFuncPtr& function,
                                    asDWORD convention) {
        must(engine->RegisterObjectBehaviour("array<T>", kind, declaration, function, convention), declaration);
    };
    const auto method = [engine](const char* declaration, const asSFuncPtr& function) {
        must(engine->RegisterObjectMethod("array<T>", declaration, function, asCALL_THISCALL), declaration);
    };
    must(engine->RegisterObjectType("array<class T>", 0, asOBJ_REF | asOBJ_TEMPLATE), "array");
    behaviour(asBEHAVE_FACTORY, "array<T>@ f(int&in)",
              asFUNCTIONPR(CScriptArray::Create, (asITypeInfo*), CScriptArray*), asCALL_CDECL);
    behaviour(asBEHAVE_FACTORY, "array<T>@ f(int&in, uint size)",
              asFUNCTIONPR(CScriptArray::Create, (asITypeInfo*, asUINT), CScriptArray*), asCALL_CDECL);
    behaviour(asBEHAVE_ADDREF, "void f()", asMETHOD(CScriptArray, AddRef), asCALL_THISCALL);
    behaviour(asBEHAVE_RELEASE, "void f()", asMETHOD(CScriptArray, Release), asCALL_THISCALL);
    method("T& opIndex(uint index)", asMETHODPR(CScriptArray, At, (asUINT), void*));
    method("const T& opIndex(uint index) const", asMETHODPR(CScriptArray, At, (asUINT) const, const void*));
    method("array<T>& opAssign(const array<T>&in value)", asMETHOD(CScriptArray, operator=));
    method("void Add(const T&in value)", asMETHOD(CScriptArray, InsertLast));
    method("void Resize(uint length)", asMETHODPR(CScriptArray, Resize, (asUINT), void));
    method("bool IsEmpty() const", asMETHOD(CScriptArray, IsEmpty));
    method("uint get_Length() const property", asMETHOD(CScriptArray, GetSize));
}

void register_enum(asIScriptEngine* engine, const char* name, std::initializer_list<std::pair<const char*, int>> items) {
    must(engine->RegisterEnum(name), name);
    for (const auto& [item, value] : items) must(engine->RegisterEnumValue(name, item, value), item);
}

template <typename T>
void register_counted(asIScriptEngine* engine, const char* name) {
    must(engine->RegisterObjectType(name, 0, asOBJ_REF), name);
    must(engine->RegisterObjectBehaviour(name, asBEHAVE_FACTORY, (std::string(name) + "@ f()").c_str(),
                                         asFUNCTION(make<T>), asCALL_CDECL),
         name);
    must(engine->RegisterObjectBehaviour(name, asBEHAVE_ADDREF, "void f()", asMETHOD(T, add_ref), asCALL_THISCALL),
         name);
    must(engine->RegisterObjectBehaviour(name, asBEHAVE_RELEASE, "void f()", asMETHOD(T, release), asCALL_THISCALL),
         name);
}

void register_enums(asIScriptEngine* engine) {
    register_enum(engine, "Severity", {{"Info", 0}, {"Success", 1}, {"Warning", 2}, {"Error", 3}});
    register_enum(engine, "InputType",
                  {{"None", -1}, {"Down", 0}, {"Up", 1}, {"Left", 2}, {"Right", 3}, {"Steer", 4}, {"Gas", 5},
                   {"Respawn", 6}, {"GiveUp", 7}, {"Horn", 8}, {"FakeFinish", 9}});
    register_enum(engine, "CommandListProcessOption",
                  {{"OnlyParse", 0}, {"QueueAndExecute", 1}, {"ExecuteImmediately", 2}});
    register_enum(engine, "InputFormatFlags",
                  {{"None", 0}, {"DecimalTime", 1}, {"SeperateRelease", 2}, {"Default", 4}});
    must(engine->SetDefaultNamespace("TM"), "namespace TM");
    register_enum(engine, "GameState",
                  {{"None", 0}, {"StartUp", 16}, {"Menus", 32}, {"LocalInit", 128}, {"LocalRace", 512}});
    must(engine->SetDefaultNamespace(""), "global namespace");
}

void register_functions(asIScriptEngine* engine) {
    const auto function = [engine](const char* space, const char* declaration, const asSFuncPtr& pointer) {
        must(engine->SetDefaultNamespace(space), space);
        must(engine->RegisterGlobalFunction(declaration, pointer, asCALL_CDECL), declaration);
        must(engine->SetDefaultNamespace(""), "global namespace");
    };
    must(engine->RegisterFuncdef("void OnCustomCommand(int fromTime, int toTime, const string&in commandLine, "
                                 "const array<string>&in args)"),
         "OnCustomCommand");
    function("Time", "uint64 get_Now() property", asFUNCTION(now_ms));
    function("Graphics", "array<uint8>@ CaptureScreenshot(vec2&inout size)", asFUNCTION(capture_screenshot));
    function("", "void log(const string&in str, Severity severity = Severity::Info)", asFUNCTION(log));
    function("", "bool RegisterVariable(const string&in name, double defaultVal)", asFUNCTION(register_variable));
    function("", "double GetVariableDouble(const string&in name)", asFUNCTION(get_variable));
    function("", "void RegisterCustomCommand(const string&in name, const string&in description, "
                 "OnCustomCommand@ callback)",
             asFUNCTION(register_custom_command));
    function("", "TM::GameState GetCurrentGameState()", asFUNCTION(game.game_state));
    function("", "SimulationManager@ GetSimulationManager()", asFUNCTION(get_simulation_manager));
    function("", "void ToggleRaceInterface(bool visible)", asFUNCTION(+[](bool visible) {
                 game.toggle_interface(visible ? 1 : 0);
             }));
}

void register_simulation(asIScriptEngine* engine) {
    const auto method = [engine](const char* type, const char* declaration, const asSFuncPtr& function) {
        must(engine->RegisterObjectMethod(type, declaration, function, asCALL_CDECL_OBJLAST), declaration);
    };
    must(engine->SetDefaultNamespace("TM"), "namespace TM");
    must(engine->RegisterObjectType("PlayerInfo", 0, asOBJ_REF | asOBJ_NOCOUNT), "PlayerInfo");
    must(engine->RegisterObjectProperty("PlayerInfo", "bool RaceFinished", asOFFSET(PlayerInfo, race_finished)),
         "RaceFinished");
    must(engine->RegisterObjectType("InputEventBuffer", 0, asOBJ_REF | asOBJ_NOCOUNT), "InputEventBuffer");
    method("InputEventBuffer", "string ToCommandsText(InputFormatFlags flags = InputFormatFlags::Default)",
           asFUNCTION(to_commands_text));
    must(engine->SetDefaultNamespace(""), "global namespace");

    register_counted<SimulationState>(engine, "SimulationState");
    must(engine->RegisterObjectBehaviour("SimulationState", asBEHAVE_FACTORY,
                                         "SimulationState@ f(const array<uint8>&in array)", asFUNCTION(make_state),
                                         asCALL_CDECL),
         "SimulationState(array)");
    method("SimulationState", "array<uint8>@ ToArray() const", asFUNCTION(state_to_array));

    must(engine->RegisterObjectType("SimulationManager", 0, asOBJ_REF | asOBJ_NOCOUNT), "SimulationManager");
    const char* manager = "SimulationManager";
    method(manager, "int get_RaceTime() const property", asFUNCTION(race_time));
    method(manager, "int get_TickTime() const property", asFUNCTION(tick_time));
    method(manager, "bool get_InRace() const property", asFUNCTION(in_race));
    method(manager, "TM::PlayerInfo@ get_PlayerInfo() const property", asFUNCTION(get_player_info));
    method(manager, "TM::InputEventBuffer@ get_InputEvents() const property", asFUNCTION(get_input_events));
    method(manager, "void SetSpeed(float speed)", asFUNCTION(set_speed));
    method(manager, "void SetInputState(InputType state, int value)", asFUNCTION(set_input_state));
    method(manager, "void GiveUp()", asFUNCTION(give_up));
    method(manager, "void PreventSimulationFinish()", asFUNCTION(prevent_finish));
    method(manager, "void ResetCamera()", asFUNCTION(reset_camera));
    method(manager, "SimulationState@ SaveState()", asFUNCTION(save_state));
    method(manager, "void RewindToState(const SimulationState&in state, bool resetCamera = true)",
           asFUNCTION(rewind_to_state));

    register_counted<CommandList>(engine, "CommandList");
    method("CommandList", "void set_Content(const string&in content) property", asFUNCTION(set_content));
    method("CommandList",
           "void Process(CommandListProcessOption option = CommandListProcessOption::QueueAndExecute)",
           asFUNCTION(process));

    register_counted<PluginInfo>(engine, "PluginInfo");
    const auto text = [engine](const char* declaration, int offset) {
        must(engine->RegisterObjectProperty("PluginInfo", declaration, offset), declaration);
    };
    text("string Author", asOFFSET(PluginInfo, author));
    text("string Name", asOFFSET(PluginInfo, name));
    text("string Description", asOFFSET(PluginInfo, description));
    text("string Version", asOFFSET(PluginInfo, version));
}

}  // namespace

void* the_simulation_manager() { return &simulation_manager; }

void register_api(asIScriptEngine* engine) {
    RegisterStdString(engine);
    must(engine->RegisterObjectMethod("string", "uint get_Length() const property", asFUNCTION(string_length),
                                      asCALL_CDECL_OBJLAST),
         "Length");
    must(engine->RegisterObjectMethod("string", "int FindFirst(const string&in, uint start = 0) const",
                                      asFUNCTION(find_first), asCALL_CDECL_OBJLAST),
         "FindFirst");
    register_arrays(engine);
    must(engine->RegisterObjectType("vec2", sizeof(Vec2),
                                    asOBJ_VALUE | asOBJ_POD | asGetTypeTraits<Vec2>() | asOBJ_APP_CLASS_ALLFLOATS),
         "vec2");
    must(engine->RegisterObjectBehaviour("vec2", asBEHAVE_CONSTRUCT, "void f(float x, float y)",
                                         asFUNCTION(construct_vec2), asCALL_CDECL_OBJLAST),
         "vec2(float, float)");
    register_enums(engine);
    register_sockets(engine);
    register_simulation(engine);
    register_functions(engine);
}
