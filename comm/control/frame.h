// The frame of a control message: four bytes of length (big endian), then one JSON object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/base/json.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

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

}  // namespace dtrain::comm
