// What TMInterface's script interface declares, and which of it this host can do.
#pragma once

#include <angelscript.h>

#include <map>
#include <string>
#include <vector>

// One thing to register; the kinds are those of tests/game_protocol/script_interface.py.
struct Declaration {
    std::string kind, scope, text;
};

// How the host does what a declaration promises.
struct Implementation {
    AngelScript::asSFuncPtr function;  // of a counted type: adds a reference
    AngelScript::asDWORD convention = AngelScript::asCALL_CDECL;
    AngelScript::asSFuncPtr release;   // of a counted type
    int number = 0;                    // bytes of a copied type, place of a property
    AngelScript::asQWORD flags = 0;    // of a copied type, beyond being one
    const void* value = nullptr;       // of a constant
};

// What the host can do. Each of it is named as TMInterface declares it, down to names and defaults of parameters.
class Repertoire {
public:
    void enumeration(const std::string& space, const std::string& name, const std::vector<std::string>& items);
    void copied(const std::string& name, int n_bytes, AngelScript::asQWORD flags,
                const AngelScript::asSFuncPtr& destruct);
    void counted(const std::string& space, const std::string& name, const AngelScript::asSFuncPtr& add_ref,
                 const AngelScript::asSFuncPtr& release);
    void array(const AngelScript::asSFuncPtr& add_ref, const AngelScript::asSFuncPtr& release);
    void single(const std::string& space, const std::string& name);
    void constructor(const std::string& type, const std::string& text, const AngelScript::asSFuncPtr& function,
                     AngelScript::asDWORD convention = AngelScript::asCALL_CDECL);
    void method(const std::string& type, const std::string& text, const AngelScript::asSFuncPtr& function,
                AngelScript::asDWORD convention = AngelScript::asCALL_CDECL_OBJLAST);
    void property(const std::string& type, const std::string& text, int offset);
    void function(const std::string& space, const std::string& text, const AngelScript::asSFuncPtr& function);
    void constant(const std::string& space, const std::string& text, const void* value);
    void funcdef(const std::string& text);

    // Register exactly what is declared, or all that the host can do where nothing is. What is declared and the host
    // cannot do compiles, and ends a script that calls it with an exception.
    // Throws std::runtime_error for what cannot be registered, and where the host can do what is not declared.
    void register_in(AngelScript::asIScriptEngine* engine, const std::vector<Declaration>& declared) const;

private:
    const Implementation* find(const Declaration& declaration) const;
    void add(const Declaration& declaration, const Implementation& implementation);

    std::vector<Declaration> order_;
    std::map<std::string, Implementation> implementations_;
};

// Reads what script_interface.as_text wrote.
std::vector<Declaration> declarations_of(const std::string& text);
