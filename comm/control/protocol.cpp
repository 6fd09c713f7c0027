#include "control/protocol.h"

#include <algorithm>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::comm {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  throw DataError(std::string("'") + c + "' is not a hexadecimal digit");
}

constexpr std::int64_t kLatestTime = std::int64_t{1} << 62;  // ns, 146 years; differences stay within 64 bits

}  // namespace

std::string encode_message(const Json& message) {
  std::string payload = to_line(message);
  if (payload.size() > kFrameLimit) {
    throw CommError("a control message of " + std::to_string(payload.size()) + " bytes is over the limit of " +
                        std::to_string(kFrameLimit),
                    "send less, or a hash of it: the control plane never carries bulk data");
  }
  return payload;
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

void FrameSeal::FreeMac::operator()(EVP_MAC_CTX* context) const {
  EVP_MAC_CTX_free(context);
}

FrameSeal::FrameSeal(const std::string& key) {
  const std::unique_ptr<EVP_MAC, void (*)(EVP_MAC*)> hmac(EVP_MAC_fetch(nullptr, "HMAC", nullptr), EVP_MAC_free);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                   OSSL_PARAM_construct_end()};
  if (hmac) mac_.reset(EVP_MAC_CTX_new(hmac.get()));
  if (!mac_ ||
      EVP_MAC_init(mac_.get(), reinterpret_cast<const unsigned char*>(key.data()), key.size(), parameters) != 1) {
    throw CommError("HMAC-SHA256 is not available in this libcrypto");
  }
}

std::array<unsigned char, kFrameMacBytes> FrameSeal::mac_of(const unsigned char* header, std::string_view payload) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  std::size_t length = 0;
  if (EVP_MAC_init(mac_.get(), nullptr, 0, nullptr) != 1 ||
      EVP_MAC_update(mac_.get(), header, kFrameHeaderBytes) != 1 ||
      EVP_MAC_update(mac_.get(), reinterpret_cast<const unsigned char*>(payload.data()), payload.size()) != 1 ||
      EVP_MAC_final(mac_.get(), digest.data(), &length, digest.size()) != 1 || length < kFrameMacBytes) {
    throw CommError("libcrypto cannot compute an HMAC-SHA256");
  }
  std::array<unsigned char, kFrameMacBytes> mac{};
  std::copy_n(digest.begin(), mac.size(), mac.begin());
  return mac;
}

std::string FrameSeal::seal(std::string_view payload) {
  std::array<unsigned char, kFrameHeaderBytes> header{};
  for (int i = 0; i < 4; ++i) header[static_cast<std::size_t>(i)] = (payload.size() >> (24 - 8 * i)) & 0xff;
  for (int i = 0; i < 8; ++i) header[static_cast<std::size_t>(4 + i)] = (next_ >> (56 - 8 * i)) & 0xff;
  const auto mac = mac_of(header.data(), payload);
  ++next_;
  std::string frame;
  frame.reserve(header.size() + payload.size() + mac.size());
  frame.append(header.begin(), header.end());
  frame.append(payload);
  return frame.append(mac.begin(), mac.end());
}

void FrameSeal::open(const unsigned char* header, std::string_view payload, std::string_view mac) {
  const std::uint64_t number = std::uint64_t{decode_length(header + 4)} << 32 | decode_length(header + 8);
  const auto due = mac_of(header, payload);
  if (!equal_secrets(mac, {reinterpret_cast<const char*>(due.data()), due.size()})) {
    throw DataError("message " + std::to_string(next_) + " was forged or changed on its way: its MAC is wrong");
  }
  if (number < next_) {
    throw DataError("message " + std::to_string(number) + " came again where message " + std::to_string(next_) +
                    " is due: somebody on the way replays");
  }
  if (number > next_) {
    throw DataError("message " + std::to_string(number) + " came where message " + std::to_string(next_) +
                    " is due: somebody on the way has dropped or reordered messages");
  }
  ++next_;
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
