// The messages of ranks, starter and agent over the agent's socket: one JSON object each, with a "type".
#pragma once

#include <string>
#include <string_view>

#include "dtrain/base/json.h"

namespace dtrain::profile {

inline constexpr int kProtocolVersion = 1;

namespace message_type {
inline constexpr const char* kHello = "hello";      // rank -> agent, with the ring: rank, pid, world_size, header
inline constexpr const char* kWelcome = "welcome";  // agent -> rank
inline constexpr const char* kRefused = "refused";  // agent -> rank: reason
inline constexpr const char* kFlush = "flush";      // rank -> agent: id
inline constexpr const char* kFlushed =
    "flushed";  // agent -> rank: id, lost (lines); all records before are in the file or lost
inline constexpr const char* kError = "error";        // agent -> one rank, once: message; the error of writing
inline constexpr const char* kFinished = "finished";  // rank -> agent: the rank ends because it is done
inline constexpr const char* kStop = "stop";          // starter -> agent: write what there is, and end
}  // namespace message_type

// Always returns an object; for a text that is not a message, it is an object without a "type".
inline Json parse_message(std::string_view text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_object() ? value : Json::object();
}

inline std::string type_of(const Json& message) {
  const auto type = message.find("type");
  return type != message.end() && type->is_string() ? type->get<std::string>() : std::string();
}

}  // namespace dtrain::profile
