// Net::Socket as TMInterface documents it: blocking reads, no close, no send timeout, `Available` and `Accept(ms)`.

#include "host.h"
#include "registry.h"

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
void number(Repertoire& repertoire, const std::string& type, const std::string& name) {
    repertoire.method("Net::Socket", type + " Read" + name + "()", asFUNCTION(read_value<T>));
    repertoire.method("Net::Socket", "bool Write(" + type + " value)", asFUNCTION(write_value<T>));
}

}  // namespace

void add_sockets(Repertoire& repertoire) {
    static const uint32_t uint_max = UINT32_MAX;
    const std::string type = "Net::Socket";
    repertoire.constant("Math", "const uint UINT_MAX", &uint_max);
    repertoire.counted("Net", "Socket", asMETHOD(Socket, add_ref), asMETHOD(Socket, release));
    repertoire.constructor(type, "Socket()", asFUNCTION(make_socket));
    const auto method = [&](const char* text, const asSFuncPtr& function) {
        repertoire.method(type, text, function, asCALL_THISCALL);
    };
    method("bool Listen(const string&in host, uint16 port)", asMETHOD(Socket, listen));
    method("Socket@ Accept(uint timeoutMs = Math::UINT_MAX)", asMETHOD(Socket, accept));
    method("uint get_Available()", asMETHOD(Socket, available));
    method("void set_NoDelay(bool value)", asMETHOD(Socket, set_no_delay));
    repertoire.method(type, "string ReadString(uint bytes)", asFUNCTION(read_string));
    repertoire.method(type, "array<uint8>@ ReadBytes(uint bytes)", asFUNCTION(read_bytes));
    repertoire.method(type, "bool Write(const string&in data)", asFUNCTION(write_string));
    repertoire.method(type, "bool Write(const array<uint8>&in data)", asFUNCTION(write_bytes));
    number<int8_t>(repertoire, "int8", "Int8");
    number<uint8_t>(repertoire, "uint8", "Uint8");
    number<int16_t>(repertoire, "int16", "Int16");
    number<uint16_t>(repertoire, "uint16", "Uint16");
    number<int32_t>(repertoire, "int", "Int32");
    number<uint32_t>(repertoire, "uint", "Uint32");
    number<int64_t>(repertoire, "int64", "Int64");
    number<uint64_t>(repertoire, "uint64", "Uint64");
    number<float>(repertoire, "float", "Float");
    number<double>(repertoire, "double", "Double");
}
