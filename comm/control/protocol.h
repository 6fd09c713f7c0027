// The messages of the control plane: their frames, the proofs of the handshake, and the comparison of clocks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// A frame has four bytes of length (big endian), then one JSON object.
inline constexpr int kControlProtocol = 1;
inline constexpr std::size_t kFrameLimit = 1u << 20;   // bytes of JSON in one frame
inline constexpr std::size_t kHelloFrameLimit = 4096;  // until the peer has proved that it knows the secret
inline constexpr std::size_t kFrameHeaderBytes = 4;

// CommError when the message is larger than kFrameLimit.
std::string encode_frame(const Json& message);
std::uint32_t decode_length(const unsigned char* header);
// DataError when it is not a JSON object.
Json decode_payload(std::string_view payload);

// A value may hold any bytes, but JSON strings are UTF-8, so other values travel as {"hex": "…"}.
Json encode_value(const std::string& value);
std::string decode_value(const Json& value);

// Members of a message; DataError names the one that is missing or of the wrong type.
const Json& member(const Json& message, const char* key);
std::string text_member(const Json& message, const char* key);
std::int64_t integer_member(const Json& message, const char* key);
// Read an optional member; if it is missing, they return an empty text, or kReported.
std::string optional_text(const Json& message, const char* key);
Departure departure_member(const Json& message);

// Both ends of a control connection prove that they know the run's secret, without sending it. This is the input of
// both proofs: everything that the two sides have sent, so no part can be replayed or swapped. Each side contributes a
// nonce.
struct Handshake {
  std::string session;
  std::int64_t generation = 0;
  std::int64_t rank = 0;
  std::int64_t size = 0;
  std::string server_nonce;
  std::string client_nonce;
};

// HMAC-SHA256, in hexadecimal. The proofs of the two sides differ, so neither can be reflected as the other.
std::string client_proof(const std::string& secret, const Handshake& handshake);
std::string server_proof(const std::string& secret, const Handshake& handshake);

// HMAC-SHA256 of the text, in hexadecimal.
std::string hmac(const std::string& key, const std::string& text);

// Takes the same time for every position of the first difference.
bool equal_secrets(std::string_view a, std::string_view b);

// Compares the monotonic clocks of two hosts by messages there and back: rank 0's time was read some time between our
// question and its answer, so the middle of the two is wrong by half of the round trip at most. The shortest of a few
// round trips counts: with it the bound is the tightest (Cristian: "Probabilistic clock synchronization", Distributed
// Computing 3, 1989). Control thread only.
class ClockProbe {
 public:
  using Time = std::chrono::nanoseconds;  // of a monotonic clock
  static constexpr int kRoundTrips = 16;

  void start();
  bool running() const { return left_ > 0; }
  // Returns the next question, which the caller sends at once.
  Json question(Time now);
  // Takes rank 0's answer, which came at `now`. Ignores the answer to another question; DataError when it is no answer.
  struct Next {
    bool ask = false;                   // the next question
    std::optional<ClockOffset> result;  // after the last
  };
  Next answer(const Json& message, Time now);

 private:
  std::int64_t id_ = 0;
  int left_ = 0;
  Time asked_{0};
  std::optional<ClockOffset> best_;
};

// Converts a time of this process's clock to the clock of its machine, which records use, in any time namespace.
inline ClockProbe::Time on_host_clock(std::chrono::steady_clock::time_point time) {
  return time.time_since_epoch() - monotonic_offset();
}

// Returns rank 0's answer to a question.
Json clock_answer(const Json& question, ClockProbe::Time now);

}  // namespace dtrain::comm
