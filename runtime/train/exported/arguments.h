// Turns an argument of the file into an operand of the type in the operator's schema.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/jit_type.h>

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

// Returns the number of the value with this name. Error if no instruction has defined the value yet.
using FindValue = std::function<Value(const std::string& name)>;

// `type`: the type in the schema, without a default; null if there is no schema: the argument is not converted. Error,
// to be put behind the operator's name: the argument's kind is not supported or does not fit.
Operand operand_of(const Json& argument, const c10::TypePtr& type, const FindValue& find_value);
// Returns the default of an argument that the file leaves out. Error if the argument has no default.
Operand default_operand(const c10::Argument& argument);

}  // namespace dtrain::exported
