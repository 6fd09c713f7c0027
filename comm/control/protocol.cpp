#include "control/protocol.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain::comm {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  throw DataError(std::string("'") + c + "' is not a hexadecimal digit");
}

constexpr std::int64_t kLatestTime = std::int64_t{1} << 62;  // ns, 146 years; differences stay within 64 bits

std::string proof(const std::string& secret, const char* side, const Handshake& handshake) {
  // A JSON array is unambiguous for any content of the strings.
  const std::string text =
      to_line(Json::array({"dtrain-control", kControlProtocol, side, handshake.session, handshake.generation,
                           handshake.rank, handshake.size, handshake.server_nonce, handshake.client_nonce}));
  return hmac(secret, text);
}

}  // namespace

std::string encode_frame(const Json& message) {
  const std::string payload = to_line(message);
  if (payload.size() > kFrameLimit) {
    throw CommError("a control message of " + std::to_string(payload.size()) + " bytes is over the limit of " +
                        std::to_string(kFrameLimit),
                    "send less, or a hash of it: the control plane never carries bulk data");
  }
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>((size >> shift) & 0xff));
  return frame += payload;
}

std::uint32_t decode_length(const unsigned char* header) {
  return std::uint32_t{header[0]} << 24 | std::uint32_t{header[1]} << 16 | std::uint32_t{header[2]} << 8 | header[3];
}

Json decode_payload(std::string_view payload) {
  Json message = Json::parse(payload, nullptr, false);
  if (message.is_discarded()) throw DataError("not JSON");
  if (!message.is_object()) throw DataError("not a JSON object");
  return message;
}

Json encode_value(const std::string& value) {
  if (is_valid_utf8(value)) return value;
  return Json{{"hex", to_hex(value)}};
}

std::string decode_value(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) throw DataError("a value that is neither a string nor hexadecimal");
  const std::string hex = text_member(value, "hex");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(hex_digit(hex[i]) << 4 | hex_digit(hex[i + 1])));
  }
  return bytes;
}

const Json& member(const Json& message, const char* key) {
  const auto found = message.find(key);
  if (found == message.end()) throw DataError(std::string("no \"") + key + "\" in the message");
  return *found;
}

std::string text_member(const Json& message, const char* key) {
  const Json& value = member(message, key);
  if (!value.is_string()) throw DataError(std::string("\"") + key + "\" is not a string");
  return value.get<std::string>();
}

std::int64_t integer_member(const Json& message, const char* key) {
  const Json& value = member(message, key);
  if (!value.is_number_integer()) throw DataError(std::string("\"") + key + "\" is not an integer");
  return value.get<std::int64_t>();
}

Departure departure_member(const Json& message) {
  if (!message.contains("departure")) return Departure::kReported;
  const std::int64_t value = integer_member(message, "departure");
  if (value < 0 || value > static_cast<int>(Departure::kTimedOut)) throw DataError("a departure that does not exist");
  return static_cast<Departure>(value);
}

std::string optional_text(const Json& message, const char* key) {
  return message.contains(key) ? text_member(message, key) : std::string();
}

std::string hmac(const std::string& key, const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (!HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
            text.size(), digest, &length)) {
    throw CommError("HMAC-SHA256 is not available in this libcrypto");
  }
  return to_hex({reinterpret_cast<const char*>(digest), length});
}

std::string client_proof(const std::string& secret, const Handshake& handshake) {
  return proof(secret, "client", handshake);
}

std::string server_proof(const std::string& secret, const Handshake& handshake) {
  return proof(secret, "server", handshake);
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Json ClockProbe::question(Time now) {
  asked_ = now;
  return {{"t", "ping"}, {"id", ++id_}};
}

void ClockProbe::start() {
  left_ = kRoundTrips;
  best_.reset();
}

ClockProbe::Next ClockProbe::answer(const Json& message, Time now) {
  const std::int64_t id = integer_member(message, "id");
  const std::int64_t time = integer_member(message, "time");
  if (time < 0 || time > kLatestTime) throw DataError("a time that is none");
  if (!running() || id != id_) return {};
  const Time middle = asked_ + (now - asked_) / 2;
  const Time error = (now - asked_ + Time(1)) / 2;
  if (!best_ || error < best_->error) best_ = ClockOffset{middle, Time(time) - middle, error, kRoundTrips};
  if (--left_ > 0) return {true, std::nullopt};
  return {false, best_};
}

Json clock_answer(const Json& question, ClockProbe::Time now) {
  return {{"t", "pong"}, {"id", integer_member(question, "id")}, {"time", now.count()}};
}

}  // namespace dtrain::comm
