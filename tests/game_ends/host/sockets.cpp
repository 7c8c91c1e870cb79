// Net::Socket as TMInterface documents it: blocking reads, no close, no send timeout, `Available` and `Accept(ms)`.

#include "host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

using namespace AngelScript;

namespace {

class Socket {
public:
    explicit Socket(int descriptor = -1) : descriptor_(descriptor) {
        if (descriptor >= 0) ++counters.open_sockets;
    }

    void add_ref() { ++references_; }
    void release() {
        if (--references_ == 0) delete this;
    }

    bool listen(const std::string& host, uint16_t port) {
        const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int on = 1;
        ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
        const bool is_bound = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
        if (!is_bound || ::listen(descriptor, 16) != 0) {
            ::close(descriptor);
            return false;
        }
        descriptor_ = descriptor;
        ++counters.open_sockets;
        return true;
    }

    Socket* accept(uint32_t timeout_ms) {
        pollfd door{descriptor_, POLLIN, 0};
        const int limit_ms = timeout_ms > INT32_MAX ? -1 : static_cast<int>(timeout_ms);
        if (::poll(&door, 1, limit_ms) <= 0) return nullptr;
        const int client = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
        return client < 0 ? nullptr : new Socket(client);
    }

    uint32_t available() const {
        int n_bytes = 0;
        return ::ioctl(descriptor_, FIONREAD, &n_bytes) == 0 ? static_cast<uint32_t>(n_bytes) : 0;
    }

    void set_no_delay(bool on) {
        const int value = on ? 1 : 0;
        ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value);
    }

    size_t read(void* data, size_t n_bytes) {
        if (available() < n_bytes) ++counters.reads_that_block;
        const ssize_t got = ::recv(descriptor_, data, n_bytes, MSG_WAITALL);
        return got < 0 ? 0 : static_cast<size_t>(got);
    }

    bool write(const void* data, size_t n_bytes) {
        ++counters.writes;
        const char* rest = static_cast<const char*>(data);
        while (n_bytes > 0) {
            const ssize_t sent = ::send(descriptor_, rest, n_bytes, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) return false;
            rest += sent;
            n_bytes -= static_cast<size_t>(sent);
        }
        return true;
    }

private:
    ~Socket() {
        if (descriptor_ < 0) return;
        ::close(descriptor_);
        --counters.open_sockets;
    }

    int descriptor_;
    int references_ = 1;
};

Socket* make_socket() { return new Socket(); }

template <typename T>
T read_value(Socket* socket) {
    T value{};
    socket->read(&value, sizeof value);
    return value;
}

template <typename T>
bool write_value(T value, Socket* socket) {
    return socket->write(&value, sizeof value);
}

std::string read_string(uint32_t n_bytes, Socket* socket) {
    std::string text(n_bytes, '\0');
    text.resize(socket->read(text.data(), n_bytes));
    return text;
}

bool write_string(const std::string& text, Socket* socket) { return socket->write(text.data(), text.size()); }

CScriptArray* read_bytes(uint32_t n_bytes, Socket* socket) {
    CScriptArray* bytes = new_byte_array(n_bytes);
    bytes->Resize(static_cast<asUINT>(socket->read(bytes->GetBuffer(), n_bytes)));
    return bytes;
}

bool write_bytes(const CScriptArray& bytes, Socket* socket) {
    return socket->write(const_cast<CScriptArray&>(bytes).GetBuffer(), bytes.GetSize());
}

template <typename T>
void register_number(asIScriptEngine* engine, const std::string& type, const std::string& name) {
    const std::string read = type + " Read" + name + "()";
    const std::string write = "bool Write(" + type + " value)";
    must(engine->RegisterObjectMethod("Socket", read.c_str(), asFUNCTION(read_value<T>), asCALL_CDECL_OBJLAST),
         read.c_str());
    must(engine->RegisterObjectMethod("Socket", write.c_str(), asFUNCTION(write_value<T>), asCALL_CDECL_OBJLAST),
         write.c_str());
}

}  // namespace

void register_sockets(asIScriptEngine* engine) {
    const auto method = [engine](const char* declaration, const asSFuncPtr& function, asDWORD convention) {
        must(engine->RegisterObjectMethod("Socket", declaration, function, convention), declaration);
    };
    must(engine->SetDefaultNamespace("Net"), "namespace Net");
    must(engine->RegisterObjectType("Socket", 0, asOBJ_REF), "Socket");
    must(engine->RegisterObjectBehaviour("Socket", asBEHAVE_FACTORY, "Socket@ f()", asFUNCTION(make_socket),
                                         asCALL_CDECL),
         "Socket()");
    must(engine->RegisterObjectBehaviour("Socket", asBEHAVE_ADDREF, "void f()", asMETHOD(Socket, add_ref),
                                         asCALL_THISCALL),
         "add_ref");
    must(engine->RegisterObjectBehaviour("Socket", asBEHAVE_RELEASE, "void f()", asMETHOD(Socket, release),
                                         asCALL_THISCALL),
         "release");
    method("bool Listen(const string&in host, uint16 port)", asMETHOD(Socket, listen), asCALL_THISCALL);
    method("Socket@ Accept(uint timeoutMs = 0xFFFFFFFF)", asMETHOD(Socket, accept), asCALL_THISCALL);
    method("uint get_Available() const property", asMETHOD(Socket, available), asCALL_THISCALL);
    method("void set_NoDelay(bool value) property", asMETHOD(Socket, set_no_delay), asCALL_THISCALL);
    method("string ReadString(uint bytes)", asFUNCTION(read_string), asCALL_CDECL_OBJLAST);
    method("array<uint8>@ ReadBytes(uint bytes)", asFUNCTION(read_bytes), asCALL_CDECL_OBJLAST);
    method("bool Write(const string&in data)", asFUNCTION(write_string), asCALL_CDECL_OBJLAST);
    method("bool Write(const array<uint8>&in data)", asFUNCTION(write_bytes), asCALL_CDECL_OBJLAST);
    register_number<int8_t>(engine, "int8", "Int8");
    register_number<uint8_t>(engine, "uint8", "Uint8");
    register_number<int16_t>(engine, "int16", "Int16");
    register_number<uint16_t>(engine, "uint16", "Uint16");
    register_number<int32_t>(engine, "int", "Int32");
    register_number<uint32_t>(engine, "uint", "Uint32");
    register_number<int64_t>(engine, "int64", "Int64");
    register_number<uint64_t>(engine, "uint64", "Uint64");
    register_number<float>(engine, "float", "Float");
    register_number<double>(engine, "double", "Double");
    must(engine->SetDefaultNamespace(""), "global namespace");
}
