// Reads YAML text into a tree with positions. Finds every error of YAML itself, and bounds the work and memory that a
// hostile file can cause. Private to config, the only file that knows yaml-cpp.
#pragma once

#include <optional>
#include <string>

#include "document/collector.h"
#include "document/value.h"

namespace dtrain::config {

inline constexpr std::size_t kMaxFileBytes = 1 << 20;

// Returns empty, with the reason in `collector`, if the text is not one YAML document without duplicate keys. A
// document without content is a null value. `fixed`: the position of every value, for text that is not a file.
std::optional<Value> parse_yaml(const std::string& text, Collector& collector, std::optional<Location> fixed = {},
                                const std::string& path = {});

}  // namespace dtrain::config
