// Loads a plugin's script, unchanged, and calls its callbacks; a C interface for tests/game_protocol/plugin_host.py.

#include "host.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

using namespace AngelScript;

GameFunctions game;
Counters counters;
std::map<std::string, double> variables;
std::map<std::string, bool> registered_variables;
std::map<std::string, asIScriptFunction*> custom_commands;

namespace {

asIScriptEngine* engine = nullptr;
asIScriptModule* module = nullptr;
std::string messages;  // the compiler's

void on_message(const asSMessageInfo* message, void*) {
    const char* kinds[] = {"error", "warning", "note"};
    messages += std::string(message->section) + ":" + std::to_string(message->row) + ":" +
                std::to_string(message->col) + ": " + kinds[message->type] + ": " + message->message + "\n";
}

// Looked up once: it is called for every tick.
asIScriptFunction* callback(const char* declaration) {
    static std::map<std::string, asIScriptFunction*> known;
    const auto found = known.find(declaration);
    if (found != known.end()) return found->second;
    return known[declaration] = module->GetFunctionByDecl(declaration);
}

void set_nothing(asIScriptContext*) {}

// Calls a script function; what is missing is no error, since plugins implement the callbacks that they want.
template <typename SetArguments>
void call(asIScriptFunction* function, SetArguments set_arguments) {
    if (function == nullptr) return;
    asIScriptContext* context = engine->RequestContext();
    must(context->Prepare(function), "prepare");
    set_arguments(context);
    if (context->Execute() == asEXECUTION_EXCEPTION) {
        ++counters.script_exceptions;
        std::fprintf(stderr, "script exception: %s in %s, line %d\n", context->GetExceptionString(),
                     context->GetExceptionFunction()->GetDeclaration(), context->GetExceptionLineNumber());
    }
    context->Unprepare();
    engine->ReturnContext(context);
}

// Calls one of the callbacks that get the simulation manager and, perhaps, two numbers.
void call_with_manager(const char* declaration, int32_t current = 0, int32_t target = 0) {
    asIScriptFunction* function = callback(declaration);
    call(function, [=](asIScriptContext* context) {
        context->SetArgAddress(0, the_simulation_manager());
        if (function->GetParamCount() == 3) {
            context->SetArgDWord(1, static_cast<asDWORD>(current));
            context->SetArgDWord(2, static_cast<asDWORD>(target));
        }
    });
}

}  // namespace

void must(int result, const char* what) {
    if (result >= 0) return;
    throw std::runtime_error(std::string(what) + " failed (" + std::to_string(result) + ")");
}

CScriptArray* new_byte_array(asUINT n_bytes) {
    static asITypeInfo* type = engine->GetTypeInfoByDecl("array<uint8>");
    return CScriptArray::Create(type, n_bytes);
}

extern "C" {

// Returns 0, or -1 if the declarations cannot be registered or the script cannot be read or does not compile;
// host_messages says why.
int32_t host_open(const char* script_path, const GameFunctions* functions, const char* declarations) {
    game = *functions;
    engine = asCreateScriptEngine();
    engine->SetMessageCallback(asFUNCTION(on_message), nullptr, asCALL_CDECL);
    engine->SetEngineProperty(asEP_ALLOW_UNSAFE_REFERENCES, 1);  // TMInterface passes vec2 by reference
    try {
        register_api(engine, declarations);
    } catch (const std::runtime_error& error) {
        messages += error.what();
        return -1;
    }
    std::ifstream file(script_path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) return -1;
    module = engine->GetModule("plugin", asGM_ALWAYS_CREATE);
    const std::string script = text.str();
    module->AddScriptSection(script_path, script.data(), script.size());
    return module->Build() < 0 ? -1 : 0;
}

const char* host_messages() { return messages.c_str(); }

void host_main() {
    call(callback("PluginInfo@ GetPluginInfo()"), set_nothing);  // TMInterface asks for it first
    call(callback("void Main()"), set_nothing);
}

void host_render() { call(callback("void Render()"), set_nothing); }
void host_game_state_changed(int32_t state) {
    call(callback("void OnGameStateChanged(TM::GameState)"), [state](asIScriptContext* context) {
        context->SetArgDWord(0, static_cast<asDWORD>(state));
    });
}
void host_disabled() { call(callback("void OnDisabled()"), set_nothing); }
void host_run_step() { call_with_manager("void OnRunStep(SimulationManager@)"); }
void host_checkpoint_count_changed(int32_t current, int32_t target) {
    call_with_manager("void OnCheckpointCountChanged(SimulationManager@, int, int)", current, target);
}
void host_lap_count_changed(int32_t current, int32_t target) {
    call_with_manager("void OnLapCountChanged(SimulationManager@, int, int)", current, target);
}

// What TMInterface stored in an earlier session.
void host_store_variable(const char* name, double value) { variables[name] = value; }

// Returns 0 if no plugin registered the variable.
int32_t host_set_variable(const char* name, double value) {
    if (!registered_variables.count(name)) return 0;
    variables[name] = value;
    return 1;
}

// Returns 0 if no plugin registered the command.
int32_t host_run_custom_command(const char* name) {
    const auto found = custom_commands.find(name);
    if (found == custom_commands.end()) return 0;
    std::string line = name;
    CScriptArray* arguments = CScriptArray::Create(engine->GetTypeInfoByDecl("array<string>"));
    call(found->second, [&line, arguments](asIScriptContext* context) {
        context->SetArgAddress(2, &line);
        context->SetArgAddress(3, arguments);
    });
    arguments->Release();
    return 1;
}

void host_counters(int64_t* reads_that_block, int64_t* writes, int64_t* open_sockets, int64_t* script_exceptions) {
    *reads_that_block = counters.reads_that_block;
    *writes = counters.writes;
    *open_sockets = counters.open_sockets;
    *script_exceptions = counters.script_exceptions;
}

}  // extern "C"
