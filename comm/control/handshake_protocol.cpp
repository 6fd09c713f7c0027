#include <algorithm>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "control/protocol.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kProofBytes = 32;
constexpr std::size_t kNonceBytes = 16;
constexpr std::size_t kLongestReason = 512;

std::string with_header(const std::string& message) {
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>((message.size() >> shift) & 0xff));
  return frame += message;
}

Json to_json(const Introduction& own) {
  return {{"purpose", own.purpose}, {"session", own.session}, {"generation", own.generation},
          {"size", own.size},       {"rank", own.rank},       {"server", own.server},
          {"pid", own.pid},         {"host", own.host}};
}

Introduction introduction_of(const Json& message) {
  return {.purpose = text_member(message, "purpose"),
          .session = text_member(message, "session"),
          .generation = integer_member(message, "generation"),
          .size = integer_member(message, "size"),
          .rank = integer_member(message, "rank"),
          .server = integer_member(message, "server"),
          .pid = integer_member(message, "pid"),
          .host = text_member(message, "host")};
}

// Words of an end that has proved nothing: an error shows them, so they hold no control characters.
std::string plain(std::string_view text) {
  std::string result(text.substr(0, kLongestReason));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result;
}

}  // namespace

void check_secret(const std::string& secret) {
  if (secret.size() >= kLeastSecret) return;
  throw CommError("the run's secret has " + std::to_string(secret.size()) + " bytes; at least " +
                  std::to_string(kLeastSecret) + " are needed");
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int length = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
            text.size(), reinterpret_cast<unsigned char*>(digest.data()), &length)) {
    throw CommError("HMAC-SHA256 is not available in this libcrypto");
  }
  digest.resize(length);
  return digest;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Handshake::Handshake(std::string secret, Introduction own, Admit admit, bool listens)
    : secret_(std::move(secret)),
      own_(std::move(own)),
      admit_(std::move(admit)),
      listens_(listens),
      nonce_(random_hex(kNonceBytes)) {
  check_secret(secret_);
}

Handshake Handshake::connecting(std::string secret, Introduction own) {
  return {std::move(secret), std::move(own), {}, false};
}

Handshake Handshake::listening(std::string secret, Introduction own, Admit admit) {
  return {std::move(secret), std::move(own), std::move(admit), true};
}

// Neither side's proof is one of the other, and no proof is a key.
std::string Handshake::hmac(std::string_view label) const {
  return hmac_sha256(secret_, "dtrain-" + std::to_string(kHandshakeProtocol) + " " + std::string(label) + '\0' + said_);
}

SessionKeys Handshake::keys() const {
  std::string to_server = hmac("key to the listener");
  std::string to_client = hmac("key from the listener");
  if (listens_) std::swap(to_server, to_client);
  return {std::move(to_server), std::move(to_client)};
}

std::string Handshake::tls_key() const {
  return hmac_sha256(secret_, "dtrain-" + std::to_string(kHandshakeProtocol) + " key of TLS for " + own_.purpose);
}

std::size_t Handshake::length_of(const unsigned char* header) {
  const std::uint32_t size = decode_length(header);
  if (size > 0 && size <= kHandshakeLimit) return size;
  if (header[0] == 0x16 && header[1] == 3) {  // the first record of TLS
    end("it speaks TLS, which communication.security: proof does not");
  } else {
    end("a message of " + std::to_string(size) + " bytes (at most " + std::to_string(kHandshakeLimit) +
        " are allowed in a handshake)");
  }
  return 0;
}

std::string Handshake::begin() {
  if (!listens_) return {};
  const std::string challenge =
      to_line({{"t", "challenge"}, {"protocol", kHandshakeProtocol}, {"purpose", own_.purpose}, {"nonce", nonce_}});
  said_ = with_header(challenge);
  return said_;
}

std::string Handshake::receive(std::string_view message) {
  try {
    if (listens_) return answer_hello(message);
    if (said_.empty()) return answer_challenge(message);
    take_welcome(message);
    return {};
  } catch (const std::exception& malformed) {
    return end(std::string("malformed message: ") + malformed.what());
  }
}

std::string Handshake::end(const std::string& why) {
  state_ = State::kRefused;
  error_ = why;
  return {};
}

std::string Handshake::answer_challenge(std::string_view message) {
  const Json challenge = decode_payload(message);
  if (text_member(challenge, "t") != "challenge") throw DataError("the first message is not a challenge");
  if (const auto protocol = integer_member(challenge, "protocol"); protocol != kHandshakeProtocol) {
    return end("it speaks protocol " + std::to_string(protocol) + ", this process " +
               std::to_string(kHandshakeProtocol));
  }
  if (const std::string purpose = text_member(challenge, "purpose"); purpose != own_.purpose) {
    return end("it takes connections for '" + plain(purpose) + "', not for '" + own_.purpose + "'");
  }
  Json hello = to_json(own_);
  hello["t"] = "hello";
  hello["protocol"] = kHandshakeProtocol;
  hello["nonce"] = nonce_;
  const std::string text = to_line(hello);
  said_ = with_header(std::string(message)) + with_header(text);
  return with_header(hmac("hello") + text);
}

std::string Handshake::answer_hello(std::string_view message) {
  if (message.size() < kProofBytes) throw DataError("a hello of " + std::to_string(message.size()) + " bytes");
  const std::string_view text = message.substr(kProofBytes);
  const Json hello = decode_payload(text);
  if (text_member(hello, "t") != "hello") throw DataError("the first message is not a hello");
  said_ += with_header(std::string(text));
  if (const auto protocol = integer_member(hello, "protocol"); protocol != kHandshakeProtocol) {
    return refuse("it speaks protocol " + std::to_string(protocol) + ", this process " +
                  std::to_string(kHandshakeProtocol));
  }
  if (!equal_secrets(message.substr(0, kProofBytes), hmac("hello"))) return refuse("wrong secret");
  other_ = introduction_of(hello);
  other_is_proven_ = true;
  if (other_.purpose != own_.purpose) {
    return refuse("it wants a connection for '" + other_.purpose + "', this one is for '" + own_.purpose + "'");
  }
  if (other_.session != own_.session) {
    return refuse("it belongs to run '" + other_.session + "', this is run '" + own_.session + "'");
  }
  if (other_.generation != own_.generation) {
    return refuse("it is of generation " + std::to_string(other_.generation) + ", this is generation " +
                  std::to_string(own_.generation));
  }
  if (other_.size != own_.size) {
    return refuse("it is rank " + std::to_string(other_.rank) + " of " + std::to_string(other_.size) +
                  ", this is a world of " + std::to_string(own_.size));
  }
  if (other_.server != own_.server) {
    return refuse("it wants " + std::to_string(other_.server) + ", this is " + std::to_string(own_.server));
  }
  if (const std::string why = admit_ ? admit_(other_) : std::string(); !why.empty()) return refuse(why);
  const std::string welcome = to_line({{"t", "welcome"}, {"pid", own_.pid}, {"host", own_.host}});
  said_ += with_header(welcome);
  state_ = State::kProven;
  return with_header(hmac("welcome") + welcome);
}

// A refusal has a proof where the other end has proved itself: then the reason is this listener's, not a stranger's.
std::string Handshake::refuse(const std::string& why) {
  end(why);
  const std::string refusal = to_line({{"t", "refused"}, {"why", why}});
  said_ += with_header(refusal);
  const std::string proof = other_is_proven_ ? hmac("refusal") : std::string(kProofBytes, '\0');
  return with_header(proof + refusal);
}

void Handshake::take_welcome(std::string_view message) {
  if (message.size() < kProofBytes) throw DataError("a welcome of " + std::to_string(message.size()) + " bytes");
  const std::string_view proof = message.substr(0, kProofBytes);
  const std::string_view text = message.substr(kProofBytes);
  const Json answer = decode_payload(text);
  const std::string type = text_member(answer, "t");
  said_ += with_header(std::string(text));
  if (type == "refused") {
    const std::string why = text_member(answer, "why");
    other_is_proven_ = equal_secrets(proof, hmac("refusal"));
    end("refused: " + (other_is_proven_ ? why : plain(why)));
    return;
  }
  if (type != "welcome") throw DataError("'" + plain(type) + "' before the welcome");
  if (!equal_secrets(proof, hmac("welcome"))) {
    end("what listens there does not know this run's secret");
    return;
  }
  other_ = own_;
  other_.pid = integer_member(answer, "pid");
  other_.host = text_member(answer, "host");
  other_is_proven_ = true;
  state_ = State::kProven;
}

}  // namespace dtrain::comm
