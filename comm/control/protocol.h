// The messages of the control plane: their frames, and the comparison of clocks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <openssl/types.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// After the handshake (dtrain/comm/handshake.h), a frame has four bytes of length, eight of its number in its direction
// (both big endian), one JSON object, and its MAC.
inline constexpr const char* kControlPurpose = "control";
inline constexpr std::size_t kFrameLimit = 1u << 20;  // bytes of JSON in one frame
inline constexpr std::size_t kFrameHeaderBytes = 12;
inline constexpr std::size_t kFrameMacBytes = 16;

// Returns a frame's payload. CommError when the message is larger than kFrameLimit.
std::string encode_message(const Json& message);
// Returns the number in the first four bytes.
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

// Seals the frames of one direction, or opens those of the other: each frame carries its number and a MAC under the
// direction's key (HMAC-SHA256 of number, length and payload, of which 16 bytes travel), so a frame that somebody on
// the path has forged, changed, repeated, moved or left out is noticed. One thread.
class FrameSeal {
 public:
  explicit FrameSeal(const std::string& key);
  // Returns the whole frame of the next message.
  std::string seal(std::string_view payload);
  // Checks the next frame, of which `payload` and `mac` have come after its header. DataError names what is wrong.
  void open(const unsigned char* header, std::string_view payload, std::string_view mac);

 private:
  struct FreeMac {
    void operator()(EVP_MAC_CTX* context) const;
  };
  std::array<unsigned char, kFrameMacBytes> mac_of(const unsigned char* header, std::string_view payload);

  std::unique_ptr<EVP_MAC_CTX, FreeMac> mac_;
  std::uint64_t next_ = 0;
};

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
