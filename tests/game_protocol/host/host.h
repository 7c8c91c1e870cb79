// What the parts of the host share: the game behind the script's API, and the counters that the tests look at.
#pragma once

#include <angelscript.h>
#include <scriptarray.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

// The game, as functions of the process that loaded this library (tests/game_protocol/plugin_host.py).
struct GameFunctions {
    int32_t (*game_state)();
    void (*race_clock)(int32_t* in_race, int32_t* race_time_ms, int32_t* tick_time_ms, int32_t* is_finished,
                       int32_t* speed_km_h);
    int32_t (*save_state)(uint8_t* buffer, int32_t capacity);
    void (*restore_state)(const uint8_t* blob, int32_t n_bytes);
    void (*set_input)(int32_t input_type, int32_t value);
    void (*set_speed)(float speed);
    void (*give_up)();
    void (*prevent_finish)();
    void (*reset_camera)();
    void (*run_command)(const char* text, int32_t n_bytes);
    int32_t (*input_script)(char* buffer, int32_t capacity);
    void (*capture)(uint8_t* pixels, int32_t width_px, int32_t height_px);
    void (*toggle_interface)(int32_t is_shown);
    void (*log)(const char* text, int32_t severity);
};

struct Counters {
    std::atomic<int64_t> reads_that_block{0};  // the script asked a socket for more than had come
    std::atomic<int64_t> writes{0};
    std::atomic<int64_t> open_sockets{0};
    std::atomic<int64_t> script_exceptions{0};
};

extern GameFunctions game;
extern Counters counters;
extern std::map<std::string, double> variables;                             // stored values, also of the last session
extern std::map<std::string, bool> registered_variables;
extern std::map<std::string, AngelScript::asIScriptFunction*> custom_commands;

constexpr int32_t MOST_BLOB_BYTES = 1 << 20;

// Throws std::runtime_error for a wrong declaration or a failed call, with its text.
void must(int result, const char* what);

AngelScript::CScriptArray* new_byte_array(AngelScript::asUINT n_bytes);

// What the callbacks get as their `SimulationManager@`.
void* the_simulation_manager();

class Repertoire;
void add_strings(Repertoire& repertoire);
void add_sockets(Repertoire& repertoire);
void register_literals(AngelScript::asIScriptEngine* engine);

// Registers all that is declared, or what the host can do where `declarations` is empty.
void register_api(AngelScript::asIScriptEngine* engine, const std::string& declarations);
