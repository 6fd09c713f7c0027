// A file as a tree of values: what reading an experiment and reading a cluster begin with. Private to config.
#pragma once

#include <filesystem>
#include <string>

#include "document/collector.h"
#include "document/value.h"

namespace dtrain::config {

// `what`: "experiment" or "cluster", for the message. Throws ConfigErrors where there is nothing to go on with.
std::string read_text(const std::filesystem::path& file, const std::string& what, Collector& collector);
// A mapping, always; otherwise throws as above.
Value parse_document(const std::string& text, Collector& collector);

}  // namespace dtrain::config
