// --set a.b=c: puts values into the tree before it is read, so that they are checked as those of the file are.
// Private to config.
#pragma once

#include <span>
#include <string>

#include "document/collector.h"
#include "document/value.h"

namespace dtrain::config {

// `lengths`: the paths of the keys that are lengths, which have one unit: setting another replaces it.
void apply_overrides(std::span<const std::string> overrides, Value& root, Collector& collector,
                     std::span<const std::string> lengths = {});

}  // namespace dtrain::config
