#include "https_post.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/text.h"

namespace dtrain::rank {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::string_view kScheme = "https://";
constexpr std::size_t kLongestAnswer = 64u << 10;
constexpr std::size_t kShownOfAnswer = 300;
constexpr std::chrono::milliseconds kLook{100};  // at `abandoned`

struct Server {
  std::string name, port;
  std::string path;
  std::string authority;  // as the URL has it
};

Server server_of(const std::string& url) {
  if (!url.starts_with(kScheme)) throw Error("it is no https:// address");
  const bool is_plain = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  const std::size_t end = std::min(url.find('/', kScheme.size()), url.size());
  Server server{.name = url.substr(kScheme.size(), end - kScheme.size()), .port = "443", .path = url.substr(end)};
  server.authority = server.name;
  if (server.path.empty()) server.path = "/";
  const std::size_t bracket = server.name.rfind(']');
  const std::size_t colon = server.name.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    server.port = server.name.substr(colon + 1);
    server.name.resize(colon);
  }
  if (server.name.starts_with('[') && server.name.ends_with(']')) {
    server.name = server.name.substr(1, server.name.size() - 2);
  }
  if (!is_plain || server.name.empty() || server.authority.find('@') != std::string::npos) {
    throw Error("it is no address of a server");
  }
  return server;
}

std::string tls_error(const char* otherwise) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason ? reason : otherwise;
}

class Connection {
 public:
  Connection(const Server& server, const std::filesystem::path& ca_file, std::chrono::milliseconds patience,
             const std::atomic<bool>& abandoned)
      : abandoned_(abandoned), deadline_(SteadyClock::now() + patience) {
    make_context(ca_file);
    connect(server);
    shake_hands(server);
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      std::size_t written = 0;
      const int result = SSL_write_ex(ssl_.get(), text.data(), text.size(), &written);
      text.remove_prefix(written);
      if (result != 1) wait(result, "the connection broke");
    }
  }

  // Adds what has come. False: nothing more comes.
  bool read(std::string& answer) {
    char buffer[4096];
    for (;;) {
      std::size_t count = 0;
      const int result = SSL_read_ex(ssl_.get(), buffer, sizeof buffer, &count);
      answer.append(buffer, count);
      if (result == 1) return answer.size() < kLongestAnswer;
      const int error = SSL_get_error(ssl_.get(), result);
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
      wait(result, "the connection broke");
    }
  }

 private:
  void make_context(const std::filesystem::path& ca_file) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!context_ || SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION) != 1) {
      throw Error("libssl does not offer TLS 1.2: " + tls_error("no reason"));
    }
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    const bool trusts = ca_file.empty() ? SSL_CTX_set_default_verify_paths(context_.get()) == 1
                                        : SSL_CTX_load_verify_locations(context_.get(), ca_file.c_str(), nullptr) == 1;
    if (!trusts) throw Error("cannot read the certificates in " + ca_file.string() + ": " + tls_error("none is there"));
  }

  void connect(const Server& server) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int code = ::getaddrinfo(server.name.c_str(), server.port.c_str(), &hints, &found);
    if (abandoned_) throw Error("it was given up");
    if (code != 0) throw Error("the name does not resolve: " + std::string(::gai_strerror(code)));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
    std::string why;
    for (const addrinfo* address = found; address; address = address->ai_next) {
      fd_.reset(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd_) throw SystemError("cannot make a socket", errno);
      int error = ::connect(fd_.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        wait_for(POLLOUT);
        socklen_t length = sizeof error;
        ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
      if (error == 0) return;
      why = std::strerror(error);
    }
    throw Error(why);
  }

  void shake_hands(const Server& server) {
    ssl_.reset(SSL_new(context_.get()));
    if (!ssl_ || SSL_set_fd(ssl_.get(), fd_.get()) != 1) throw Error("libssl makes no connection");
    X509_VERIFY_PARAM* const expected = SSL_get0_param(ssl_.get());
    if (X509_VERIFY_PARAM_set1_ip_asc(expected, server.name.c_str()) != 1) {
      ERR_clear_error();
      SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
      if (SSL_set1_host(ssl_.get(), server.name.c_str()) != 1 ||
          SSL_set_tlsext_host_name(ssl_.get(), server.name.c_str()) != 1) {
        throw Error("it is no address of a server");
      }
    }
    for (;;) {
      const int result = SSL_connect(ssl_.get());
      if (result == 1) return;
      const long verified = SSL_get_verify_result(ssl_.get());
      if (verified != X509_V_OK) {
        ERR_clear_error();
        throw Error("its certificate is refused: " + std::string(X509_verify_cert_error_string(verified)));
      }
      wait(result, "it speaks no TLS");
    }
  }

  void wait(int result, const char* otherwise) {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return wait_for(POLLIN);
      case SSL_ERROR_WANT_WRITE:
        return wait_for(POLLOUT);
      default:
        throw Error(tls_error(otherwise));
    }
  }

  void wait_for(short event) const {
    for (;;) {
      if (abandoned_) throw Error("it was given up");
      if (SteadyClock::now() >= deadline_) throw Error("no answer in time");
      pollfd events{fd_.get(), event, 0};
      if (::poll(&events, 1, static_cast<int>(kLook.count())) > 0) return;
    }
  }

  const std::atomic<bool>& abandoned_;
  const SteadyClock::time_point deadline_;
  UniqueFd fd_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{nullptr, SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
};

// "HTTP/1.1 200 OK" -> 200. Empty: the line is not there yet.
std::optional<int> status_of(std::string_view answer) {
  if (answer.find("\r\n") == std::string_view::npos) return std::nullopt;
  if (!answer.starts_with("HTTP/1.")) throw Error("its answer is not HTTP");
  answer.remove_prefix(std::min(answer.find(' ') + 1, answer.size()));
  return take_number<int>(answer).value_or(0);
}

bool is_good(const std::optional<int>& status) {
  return status && *status >= 200 && *status < 300;
}

}  // namespace

void send(const HttpsPost& post, std::chrono::milliseconds patience, const std::atomic<bool>& abandoned) {
  const Server server = server_of(post.url);
  const bool is_word = std::all_of(post.token.begin(), post.token.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (post.token.empty() || !is_word) throw Error("the file with the token has none");
  Connection connection(server, post.ca_file, patience, abandoned);
  connection.write("POST " + server.path + " HTTP/1.1\r\nHost: " + server.authority + "\r\nAuthorization: Bearer " +
                   post.token + "\r\nContent-Type: application/json\r\nContent-Length: " +
                   std::to_string(post.body.size()) + "\r\nConnection: close\r\n\r\n" + post.body);
  std::string answer;
  std::optional<int> status;
  for (bool more = true; more && !is_good(status);) {
    more = connection.read(answer);
    if (!status) status = status_of(answer);
  }
  if (is_good(status)) return;
  if (!status) throw Error("it has closed the connection without an answer");
  const std::size_t head = answer.find("\r\n\r\n");
  const std::string body = head == std::string::npos ? "" : answer.substr(head + 4, kShownOfAnswer);
  throw Error("it answers " + std::to_string(*status) + (body.empty() ? "" : ": " + printable(trimmed(body))));
}

}  // namespace dtrain::rank
