// TMInterface's strings: the names that it declares, and none of the engine's own add-on (which has `length()`).

#include "host.h"
#include "registry.h"

#include <new>
#include <sstream>

using namespace AngelScript;

namespace {

// Owns the literals of scripts.
class Literals : public asIStringFactory {
public:
    const void* GetStringConstant(const char* data, asUINT length) override {
        const auto place = uses_.try_emplace(std::string(data, length), 0).first;
        ++place->second;
        return &place->first;
    }

    int ReleaseStringConstant(const void* literal) override {
        const auto found = uses_.find(*static_cast<const std::string*>(literal));
        if (found == uses_.end()) return asERROR;
        if (--found->second == 0) uses_.erase(found);
        return asSUCCESS;
    }

    int GetRawStringData(const void* literal, char* data, asUINT* length) const override {
        const auto* text = static_cast<const std::string*>(literal);
        if (length != nullptr) *length = static_cast<asUINT>(text->size());
        if (data != nullptr) text->copy(data, text->size());
        return asSUCCESS;
    }

private:
    std::map<std::string, int> uses_;
};

void construct(std::string* memory) { new (memory) std::string(); }
void construct_copy(const std::string& other, std::string* memory) { new (memory) std::string(other); }
void destruct(std::string* text) { text->~basic_string(); }

std::string& assign(const std::string& other, std::string* text) { return *text = other; }
std::string& add_assign(const std::string& other, std::string* text) { return *text += other; }
bool equals(const std::string& other, const std::string* text) { return *text == other; }
std::string add(const std::string& other, const std::string* text) { return *text + other; }
uint32_t length(const std::string* text) { return static_cast<uint32_t>(text->size()); }

int find_first(const std::string& part, uint32_t start, const std::string* text) {
    const size_t at = text->find(part, start);
    return at == std::string::npos ? -1 : static_cast<int>(at);
}

template <typename T>
std::string as_text(T value) {
    std::ostringstream text;
    text << std::boolalpha << value;
    return text.str();
}

template <typename T>
std::string add_value(T value, const std::string* text) {
    return *text + as_text(value);
}

template <typename T>
std::string add_to_value(T value, const std::string* text) {
    return as_text(value) + *text;
}

template <typename T>
void number(Repertoire& repertoire, const std::string& type) {
    repertoire.method("string", "string opAdd(" + type + ")", asFUNCTION(add_value<T>));
    repertoire.method("string", "string opAdd_r(" + type + ")", asFUNCTION(add_to_value<T>));
}

}  // namespace

void add_strings(Repertoire& repertoire) {
    repertoire.copied("string", sizeof(std::string), asGetTypeTraits<std::string>(), asFUNCTION(destruct));
    repertoire.constructor("string", "string()", asFUNCTION(construct), asCALL_CDECL_OBJLAST);
    repertoire.constructor("string", "string(const string&in)", asFUNCTION(construct_copy), asCALL_CDECL_OBJLAST);
    repertoire.method("string", "string& opAssign(const string&in)", asFUNCTION(assign));
    repertoire.method("string", "string& opAddAssign(const string&in)", asFUNCTION(add_assign));
    repertoire.method("string", "bool opEquals(const string&in)", asFUNCTION(equals));
    repertoire.method("string", "string opAdd(const string&in)", asFUNCTION(add));
    repertoire.method("string", "uint get_Length()", asFUNCTION(length));
    repertoire.method("string", "int FindFirst(const string&in, uint start = 0)", asFUNCTION(find_first));
    number<double>(repertoire, "double");
    number<float>(repertoire, "float");
    number<int64_t>(repertoire, "int64");
    number<uint64_t>(repertoire, "uint64");
    number<bool>(repertoire, "bool");
}

void register_literals(asIScriptEngine* engine) {
    static Literals literals;
    must(engine->RegisterStringFactory("string", &literals), "string literals");
}
