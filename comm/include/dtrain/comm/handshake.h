// The handshake with which every TCP connection between processes of a run begins. Both ends prove that they know the
// run's secret, without sending it, and derive a key for each direction.
//
// Three messages: the listening end's challenge (its nonce), the connecting end's hello (its nonce, who it is and whom
// it means, and its proof), and the listening end's welcome or refusal (with its proof). A proof is the HMAC-SHA256,
// under the secret, of its sender's side and of everything that both ends have said so far. So no message can be
// replayed, reflected, changed, or used on a connection of another purpose. The session keys are HMACs of the whole
// conversation. A listener proves nothing to an end that has not proved itself, so a stranger gets nothing by which it
// could test guesses of the secret.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace dtrain::comm {

inline constexpr int kHandshakeProtocol = 3;
inline constexpr std::size_t kLeastSecret = 16;  // bytes
// A message of the handshake is four bytes of length (big endian), then at most this many bytes.
inline constexpr std::size_t kHandshakeHeaderBytes = 4;
inline constexpr std::size_t kHandshakeLimit = 4096;

// What one end says of itself and of the connection that it wants.
struct Introduction {
  std::string purpose;          // "control", "data" or "link"
  std::string session;          // the name of the run
  std::int64_t generation = 0;  // of the ranks
  std::int64_t size = 0;        // of their world
  std::int64_t rank = 0;        // of the connecting end; the listening end sets nothing
  std::int64_t server = 0;      // of the listening end
  std::int64_t pid = 0;         // of the process that speaks, and its host, for errors
  std::string host;
};

// 32 bytes each. What one end sends under `send`, the other receives under `receive`.
struct SessionKeys {
  std::string send, receive;
};

// One end of a handshake, without the connection: the caller carries the messages. One thread.
class Handshake {
 public:
  // Called once the other end has proved itself, before the welcome. Returns why this end refuses the other; empty:
  // welcome.
  using Admit = std::function<std::string(const Introduction& other)>;

  enum class State {
    kRunning,
    kProven,   // both ends have proved themselves
    kRefused,  // one end does not want the other, or there is no handshake: error() says why
  };

  // CommError when the secret has less than 16 bytes.
  static Handshake connecting(std::string secret, Introduction own);
  // Refuses others whose purpose, session, generation, size or server are not its own; `admit` checks the rest.
  static Handshake listening(std::string secret, Introduction own, Admit admit);

  // Returns the frame to send first; empty for the connecting end, which waits for the challenge.
  std::string begin();
  // Takes the other end's next message, without its header. Returns the frame to send; empty: none. Never throws
  // because of the message.
  std::string receive(std::string_view message);
  // Returns the length of the message that this header announces; 0: a length that no message has, which ends the
  // handshake.
  std::size_t length_of(const unsigned char* header);

  bool listens() const { return listens_; }
  // Returns the key of TLS for connections of this purpose, the same on both ends.
  std::string tls_key() const;

  State state() const { return state_; }
  const std::string& error() const { return error_; }
  // True once the other end has proved that it knows the secret, also where it is refused then.
  bool other_is_proven() const { return other_is_proven_; }
  const Introduction& other() const { return other_; }  // once it is proven
  SessionKeys keys() const;                             // after kProven

 private:
  Handshake(std::string secret, Introduction own, Admit admit, bool listens);
  std::string answer_challenge(std::string_view message);
  std::string answer_hello(std::string_view message);
  void take_welcome(std::string_view message);
  std::string refuse(const std::string& why);
  std::string end(const std::string& why);
  std::string hmac(std::string_view label) const;

  std::string secret_;
  Introduction own_;
  Introduction other_;
  Admit admit_;
  bool listens_;
  bool other_is_proven_ = false;
  State state_ = State::kRunning;
  std::string nonce_;
  std::string said_;  // every message so far, each after its length
  std::string error_;
};

// CommError when the secret has less than kLeastSecret bytes.
void check_secret(const std::string& secret);
// HMAC-SHA256, 32 bytes. CommError where libcrypto does not offer it.
std::string hmac_sha256(std::string_view key, std::string_view text);
// Takes the same time for every position of the first difference.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace dtrain::comm
