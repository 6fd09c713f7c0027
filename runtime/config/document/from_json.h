// JSON as a tree of values, to be read as a file is. Private to config.
#pragma once

#include "document/value.h"
#include "dtrain/base/json.h"

namespace dtrain::config {

Value value_of(const Json& json);

}  // namespace dtrain::config
