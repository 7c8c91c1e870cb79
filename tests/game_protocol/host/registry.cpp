// Registers declarations with the engine, each with the host's implementation or a stub.
//
// A file of declarations leaves out three things. Whether a method is const: here only what the language itself demands
// to be, so that a script that compiles does so whatever is const in the game. Which methods are accessors: those named
// get_ and set_. And how large types are: what the host does not do is never made, so any size will do.

#include "registry.h"

#include "host.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>
#include <stdexcept>

using namespace AngelScript;

namespace {

constexpr int STUB_PROPERTY_BYTES = 16;

void unable(asIScriptGeneric* call) {
    const std::string text = std::string("the host cannot do ") + call->GetFunction()->GetDeclaration(true, true, true);
    asGetActiveContext()->SetException(text.c_str());
}

void nothing(asIScriptGeneric*) {}

// Blanks count only between two words.
std::string without_blanks(const std::string& text) {
    const auto is_word = [](char one) { return std::isalnum(static_cast<unsigned char>(one)) || one == '_'; };
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != ' ') {
            result += text[i];
            continue;
        }
        const bool is_between = !result.empty() && is_word(result.back()) && i + 1 < text.size() && is_word(text[i + 1]);
        if (is_between) result += ' ';
    }
    return result;
}

std::string key(const Declaration& declaration) {
    return declaration.kind + " " + declaration.scope + " " + without_blanks(declaration.text);
}

std::pair<std::string, std::string> split_scope(const std::string& scope) {
    const size_t at = scope.rfind("::");
    if (at == std::string::npos) return {"", scope};
    return {scope.substr(0, at), scope.substr(at + 2)};
}

std::string parameters(const std::string& text) {
    const size_t at = text.find('(');
    return text.substr(at + 1, text.rfind(')') - at - 1);
}

std::string method_name(const std::string& text) {
    const std::string head = text.substr(0, text.find('('));
    return head.substr(head.find_last_of(" &@") + 1);
}

bool begins_with(const std::string& text, const std::string& part) { return text.compare(0, part.size(), part) == 0; }

// Literals are const strings, so reading ones must be possible; and where two methods differ by constness only, the one
// that returns something const is.
std::string suffix(const Declaration& declaration) {
    const std::string name = method_name(declaration.text);
    const bool changes = name == "opAssign" || name == "opAddAssign" || name == "opIndex";
    const bool reads_a_literal = declaration.scope == "string" && begins_with(name, "op") && !changes;
    const bool is_const_twin = name == "opIndex" && begins_with(declaration.text, "const ");
    std::string result = reads_a_literal || is_const_twin ? " const" : "";
    if (begins_with(name, "get_") || begins_with(name, "set_")) result += " property";
    return result;
}

class Registration {
public:
    explicit Registration(asIScriptEngine* engine) : engine_(engine) {}

    void type(const Declaration& declaration, const Implementation* known, int n_properties) {
        enter(declaration.scope);
        const char* name = declaration.text.c_str();
        if (declaration.kind == "enum") {
            check(engine_->RegisterEnum(name), declaration);
        } else if (declaration.kind == "value") {
            const int n_bytes = known ? known->number : STUB_PROPERTY_BYTES * (n_properties + 1);
            const asQWORD flags = asOBJ_VALUE | (known ? known->flags : asQWORD(asOBJ_APP_CLASS_CDAK));
            check(engine_->RegisterObjectType(name, n_bytes, static_cast<asDWORD>(flags)), declaration);
        } else if (declaration.kind == "template") {
            const std::string full = declaration.text + "<class T>";
            check(engine_->RegisterObjectType(full.c_str(), 0, asOBJ_REF | asOBJ_TEMPLATE), declaration);
        } else {
            const asDWORD flags = declaration.kind == "single" ? asOBJ_REF | asOBJ_NOCOUNT : asDWORD(asOBJ_REF);
            check(engine_->RegisterObjectType(name, 0, flags), declaration);
        }
        kinds_[declaration.scope.empty() ? declaration.text : declaration.scope + "::" + declaration.text] =
            declaration.kind;
    }

    void other(const Declaration& declaration, const Implementation* known) {
        const Implementation stub{asFUNCTION(unable), asCALL_GENERIC, {}, 0, 0, nullptr};
        const Implementation& made = known ? *known : stub;
        const std::string& kind = declaration.kind;
        const std::string& text = declaration.text;
        if (kind == "function") {
            enter(declaration.scope);
            const std::string full = text + global_suffix(text);
            check(engine_->RegisterGlobalFunction(full.c_str(), made.function, made.convention), declaration);
        } else if (kind == "funcdef") {
            enter(declaration.scope);
            check(engine_->RegisterFuncdef(text.c_str()), declaration);
        } else if (kind == "constant") {
            enter(declaration.scope);
            static uint64_t unknown = 0;
            void* value = known ? const_cast<void*>(known->value) : &unknown;
            check(engine_->RegisterGlobalProperty(text.c_str(), value), declaration);
        } else if (kind == "item") {
            item(declaration);
        } else {
            member(declaration, made, known != nullptr);
        }
    }

private:
    void item(const Declaration& declaration) {
        const auto [space, type] = split_scope(declaration.scope);
        enter(space);
        const size_t at = declaration.text.find('=');
        const std::string name = without_blanks(declaration.text.substr(0, at));
        check(engine_->RegisterEnumValue(type.c_str(), name.c_str(), std::stoi(declaration.text.substr(at + 1))),
              declaration);
    }

    void member(const Declaration& declaration, const Implementation& made, bool is_known) {
        const auto [space, name] = split_scope(declaration.scope);
        enter(space);
        const std::string kind = kinds_[declaration.scope];
        const std::string type = kind == "template" ? name + "<T>" : name;
        const char* of_type = type.c_str();
        if (declaration.kind == "property") {
            const int offset = is_known ? made.number : STUB_PROPERTY_BYTES * ++n_properties_[declaration.scope];
            check(engine_->RegisterObjectProperty(of_type, declaration.text.c_str(), offset), declaration);
        } else if (declaration.kind == "method") {
            const std::string full = declaration.text + suffix(declaration);
            check(engine_->RegisterObjectMethod(of_type, full.c_str(), made.function, made.convention), declaration);
        } else if (declaration.kind == "destructor") {
            destructor(declaration, kind, type, made, is_known);
        } else if (kind == "value") {
            const std::string full = "void f(" + parameters(declaration.text) + ")";
            check(engine_->RegisterObjectBehaviour(of_type, asBEHAVE_CONSTRUCT, full.c_str(), made.function,
                                                   made.convention),
                  declaration);
        } else {
            std::string given = parameters(declaration.text);
            if (kind == "template") given = given.empty() ? "int&in" : "int&in, " + given;
            const std::string full = type + "@ f(" + given + ")";
            check(engine_->RegisterObjectBehaviour(of_type, asBEHAVE_FACTORY, full.c_str(), made.function,
                                                   made.convention),
                  declaration);
        }
    }

    void destructor(const Declaration& declaration, const std::string& kind, const std::string& type,
                    const Implementation& made, bool is_known) {
        const auto behaviour = [&](asEBehaviours what, const asSFuncPtr& function, asDWORD convention) {
            if (is_known)
                check(engine_->RegisterObjectBehaviour(type.c_str(), what, "void f()", function, convention),
                      declaration);
            else
                check(engine_->RegisterObjectBehaviour(type.c_str(), what, "void f()", asFUNCTION(nothing),
                                                       asCALL_GENERIC),
                      declaration);
        };
        if (kind == "value") {
            behaviour(asBEHAVE_DESTRUCT, made.function, made.convention);
            return;
        }
        behaviour(asBEHAVE_ADDREF, made.function, made.convention);
        behaviour(asBEHAVE_RELEASE, made.release, made.convention);
    }

    static std::string global_suffix(const std::string& text) {
        return begins_with(method_name(text), "get_") ? " property" : "";
    }

    void enter(const std::string& space) { must(engine_->SetDefaultNamespace(space.c_str()), space.c_str()); }

    static void check(int result, const Declaration& declaration) {
        must(result, (declaration.kind + " " + declaration.scope + " " + declaration.text).c_str());
    }

    asIScriptEngine* engine_;
    std::map<std::string, std::string> kinds_;
    std::map<std::string, int> n_properties_;
};

bool is_type(const Declaration& declaration) {
    static const std::set<std::string> kinds{"enum", "value", "ref", "single", "template"};
    return kinds.count(declaration.kind) > 0;
}

// Types before what names them; then the arrays' methods, before the first array of something is named.
int rank(const Declaration& declaration) {
    if (is_type(declaration)) return 0;
    if (declaration.kind == "item") return 1;
    return declaration.scope == "array" ? 2 : declaration.kind == "funcdef" ? 3 : 4;
}

}  // namespace

void Repertoire::add(const Declaration& declaration, const Implementation& implementation) {
    order_.push_back(declaration);
    implementations_[key(declaration)] = implementation;
}

void Repertoire::enumeration(const std::string& space, const std::string& name, const std::vector<std::string>& items) {
    add({"enum", space, name}, {});
    for (const std::string& item : items) add({"item", space.empty() ? name : space + "::" + name, item}, {});
}

void Repertoire::copied(const std::string& name, int n_bytes, asQWORD flags, const asSFuncPtr& destruct) {
    add({"value", "", name}, {{}, 0, {}, n_bytes, flags, nullptr});
    add({"destructor", name, "~" + name + "()"}, {destruct, asCALL_CDECL_OBJLAST, {}, 0, 0, nullptr});
}

void Repertoire::counted(const std::string& space, const std::string& name, const asSFuncPtr& add_ref,
                         const asSFuncPtr& release) {
    add({"ref", space, name}, {});
    const std::string scope = space.empty() ? name : space + "::" + name;
    add({"destructor", scope, "~" + name + "()"}, {add_ref, asCALL_THISCALL, release, 0, 0, nullptr});
}

void Repertoire::array(const asSFuncPtr& add_ref, const asSFuncPtr& release) {
    add({"template", "", "array"}, {});
    add({"destructor", "array", "~array()"}, {add_ref, asCALL_THISCALL, release, 0, 0, nullptr});
}

void Repertoire::single(const std::string& space, const std::string& name) { add({"single", space, name}, {}); }

void Repertoire::constructor(const std::string& type, const std::string& text, const asSFuncPtr& function,
                             asDWORD convention) {
    add({"constructor", type, text}, {function, convention, {}, 0, 0, nullptr});
}

void Repertoire::method(const std::string& type, const std::string& text, const asSFuncPtr& function,
                        asDWORD convention) {
    add({"method", type, text}, {function, convention, {}, 0, 0, nullptr});
}

void Repertoire::property(const std::string& type, const std::string& text, int offset) {
    add({"property", type, text}, {{}, 0, {}, offset, 0, nullptr});
}

void Repertoire::function(const std::string& space, const std::string& text, const asSFuncPtr& function) {
    add({"function", space, text}, {function, asCALL_CDECL, {}, 0, 0, nullptr});
}

void Repertoire::constant(const std::string& space, const std::string& text, const void* value) {
    add({"constant", space, text}, {{}, 0, {}, 0, 0, value});
}

void Repertoire::funcdef(const std::string& text) { add({"funcdef", "", text}, {}); }

const Implementation* Repertoire::find(const Declaration& declaration) const {
    const auto found = implementations_.find(key(declaration));
    return found == implementations_.end() ? nullptr : &found->second;
}

void Repertoire::register_in(asIScriptEngine* engine, const std::vector<Declaration>& declared) const {
    std::vector<Declaration> all = declared.empty() ? order_ : declared;
    std::set<std::string> keys;
    std::map<std::string, int> n_properties;
    for (const Declaration& one : all) {
        keys.insert(key(one));
        if (one.kind == "property") ++n_properties[one.scope];
    }
    std::string undeclared;
    for (const Declaration& one : order_)
        if (!keys.count(key(one))) undeclared += "\n  " + key(one);
    if (!undeclared.empty()) throw std::runtime_error("the host can do what is not declared:" + undeclared);
    std::stable_sort(all.begin(), all.end(),
                     [](const Declaration& one, const Declaration& other) { return rank(one) < rank(other); });
    Registration registration(engine);
    for (const Declaration& one : all) {
        if (is_type(one))
            registration.type(one, find(one), n_properties[one.scope.empty() ? one.text : one.scope + "::" + one.text]);
        else
            registration.other(one, find(one));
    }
    must(engine->SetDefaultNamespace(""), "global namespace");
}

std::vector<Declaration> declarations_of(const std::string& text) {
    std::vector<Declaration> declarations;
    std::stringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const size_t first = line.find('\t');
        const size_t second = line.find('\t', first + 1);
        declarations.push_back({line.substr(0, first), line.substr(first + 1, second - first - 1),
                                line.substr(second + 1)});
    }
    return declarations;
}
