// Turns an argument as the file has it into an operand of the type that an operator's schema asks for.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/jit_type.h>

#include "exported/model_json.h"
#include "exported/program.h"

namespace dtrain::exported {

// The number of a value by its name. Error if it has none (yet).
using FindValue = std::function<Value(const std::string& name)>;

// `type`: as in the schema, without a default; null for what has no schema, where the argument is taken as it is.
// Error, to be put behind the operator's name: the argument is of a kind that is not supported, or does not fit.
Operand operand_of(const Json& argument, const c10::TypePtr& type, const FindValue& find_value);
// The default of an argument that the file leaves out. Error if it has none.
Operand default_operand(const c10::Argument& argument);

}  // namespace dtrain::exported
