#include "control/tls.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr const char* kIdentity = "dtrain";
// Both are of SHA-256, as a key without a hash of its own needs.
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

std::string last_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return {};
  const char* const reason = ERR_reason_error_string(code);
  return reason ? reason : "error " + std::to_string(code);
}

unsigned int give_key(const SSL* ssl, unsigned char* key, unsigned int limit) {
  const auto* const tls = static_cast<const Tls*>(SSL_get_app_data(ssl));
  if (tls->key().size() > limit) return 0;
  std::copy(tls->key().begin(), tls->key().end(), key);
  return static_cast<unsigned int>(tls->key().size());
}

unsigned int client_key(SSL* ssl, const char*, char* identity, unsigned int most_identity, unsigned char* key,
                        unsigned int limit) {
  if (std::strlen(kIdentity) >= most_identity) return 0;
  std::strcpy(identity, kIdentity);
  return give_key(ssl, key, limit);
}

unsigned int server_key(SSL* ssl, const char* identity, unsigned char* key, unsigned int limit) {
  return identity && std::strcmp(identity, kIdentity) == 0 ? give_key(ssl, key, limit) : 0;
}

using Context = std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)>;

Context make_context(Tls::Side side) {
  const bool connects = side == Tls::Side::kConnecting;
  Context context(SSL_CTX_new(connects ? TLS_client_method() : TLS_server_method()), SSL_CTX_free);
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), kSuites) != 1) {
    throw CommError("libssl does not offer TLS 1.3: " + last_error());
  }
  // The kernel's TLS stays off: libssl 3 does not tell the kernel a renewed key.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  if (connects) {
    SSL_CTX_set_psk_client_callback(context.get(), client_key);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);  // nobody's certificate is good
  } else {
    SSL_CTX_set_psk_server_callback(context.get(), server_key);
  }
  return context;
}

SSL_CTX* context_of(Tls::Side side) {
  static const Context connecting = make_context(Tls::Side::kConnecting);
  static const Context listening = make_context(Tls::Side::kListening);
  return side == Tls::Side::kConnecting ? connecting.get() : listening.get();
}

// Writing to a connection that the other end has closed raises SIGPIPE, which would end a process that does not ignore
// it. While this exists, the thread gets none.
class NoSigpipe {
 public:
  NoSigpipe() {
    struct sigaction action {};
    ::sigaction(SIGPIPE, nullptr, &action);
    is_needed_ = action.sa_handler != SIG_IGN;
    if (!is_needed_) return;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    had_one_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (!is_needed_) return;
    const timespec none{};
    if (!had_one_) sigtimedwait(&pipe_, nullptr, &none);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe& operator=(NoSigpipe&&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool is_needed_ = false;
  bool had_one_ = false;
};

}  // namespace

void Tls::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}

Tls::Tls(int fd, Side side, std::string key, std::uint64_t bytes_of_a_key)
    : key_(std::move(key)), bytes_of_a_key_(bytes_of_a_key), ssl_(SSL_new(context_of(side))) {
  if (!ssl_ || SSL_set_fd(ssl_.get(), fd) != 1) throw CommError("libssl makes no connection: " + last_error());
  SSL_set_app_data(ssl_.get(), this);
  side == Side::kConnecting ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
}

Tls::Outcome Tls::outcome(int result, std::size_t bytes) {
  if (result == 1) return {Want::kNothing, bytes, {}};
  const int code = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {Want::kRead, 0, {}};
    case SSL_ERROR_WANT_WRITE:
      return {Want::kWrite, 0, {}};
    case SSL_ERROR_ZERO_RETURN:
      return {Want::kEnd, 0, {}};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return {Want::kEnd, 0, {}, code};
    default:
      break;
  }
  const unsigned long first = ERR_peek_error();
  std::string text = last_error();
  // The other end is gone without the close of TLS: a killed process.
  if (ERR_GET_REASON(first) == SSL_R_UNEXPECTED_EOF_WHILE_READING) text.clear();
  return {Want::kEnd, 0, text};
}

Tls::Outcome Tls::shake_hands() {
  const NoSigpipe quiet;
  ERR_clear_error();
  errno = 0;
  Outcome result = outcome(SSL_do_handshake(ssl_.get()), 0);
  // Only the pre-shared key proves anything.
  if (result.want == Want::kNothing && SSL_session_reused(ssl_.get()) != 1) {
    return {Want::kEnd, 0, "the other end did not use the run's key"};
  }
  return result;
}

Tls::Outcome Tls::read(void* buffer, std::size_t size) {
  const NoSigpipe quiet;  // it may write an alert
  ERR_clear_error();
  errno = 0;
  std::size_t bytes = 0;
  const int result = SSL_read_ex(ssl_.get(), buffer, size, &bytes);
  return outcome(result, bytes);
}

Tls::Outcome Tls::write(const void* buffer, std::size_t size) {
  const NoSigpipe quiet;
  ERR_clear_error();
  errno = 0;
  std::size_t bytes = 0;
  const int written = SSL_write_ex(ssl_.get(), buffer, size, &bytes);
  Outcome result = outcome(written, bytes);
  sent_with_key_ += result.bytes;
  if (result.want == Want::kNothing && sent_with_key_ >= bytes_of_a_key_) renew_key();
  return result;
}

// Called when no record is half written. libssl reads nothing while the message that announces the new key waits for
// room; if both ends waited so, neither would make room for the other. So it is sent only where there is room, and
// otherwise after a later record: the limit leaves time.
void Tls::renew_key() {
  pollfd room{SSL_get_fd(ssl_.get()), POLLOUT, 0};
  if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return;
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    (void)SSL_do_handshake(ssl_.get());  // sends the message; a broken connection is reported by the next call
    sent_with_key_ = 0;
    ++keys_renewed_;
  }
  ERR_clear_error();
}

}  // namespace dtrain::comm
