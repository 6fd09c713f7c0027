// A file as a tree of values: the readers of experiments and of clusters begin with it. Private to config.
#pragma once

#include <filesystem>
#include <string>

#include "document/collector.h"
#include "document/value.h"

namespace dtrain::config {

// `what`: "experiment" or "cluster", for the message. Throws ConfigErrors if there is nothing to go on with.
std::string read_text(const std::filesystem::path& file, const std::string& what, Collector& collector);
// Returns a mapping, always; otherwise throws as above.
Value parse_document(const std::string& text, Collector& collector);

}  // namespace dtrain::config
