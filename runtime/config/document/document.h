// Reads a file of YAML text, and what --set adds to it, into a tree with positions, from which the readers of
// experiments and of clusters begin. Finds every error of YAML itself, and bounds the work and memory that a hostile
// file can cause. Private to config, the only file that knows yaml-cpp.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "document/collector.h"
#include "document/value.h"

namespace dtrain::config {

inline constexpr std::size_t kMaxFileBytes = 1 << 20;

// Returns empty, with the reason in `collector`, if the text is not one YAML document without duplicate keys. A
// document without content is a null value. `fixed`: the position of every value, for text that is not a file.
std::optional<Value> parse_yaml(const std::string& text, Collector& collector, std::optional<Location> fixed = {},
                                const std::string& path = {});

// Returns the text of a file. `what`: "experiment" or "cluster", for the message. Throws ConfigErrors if there is
// nothing to go on with.
std::string read_text(const std::filesystem::path& file, const std::string& what, Collector& collector);
// Returns a mapping, always; otherwise throws as above.
Value parse_document(const std::string& text, Collector& collector);

// --set a.b=c: puts values into the tree before it is read, so that they are checked as those of the file are.
// `lengths`: the paths of the keys that are lengths, which have one unit: setting another replaces it.
void apply_overrides(std::span<const std::string> overrides, Value& root, Collector& collector,
                     std::span<const std::string> lengths = {});

}  // namespace dtrain::config
