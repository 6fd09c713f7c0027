#include "dtrain/base/text.h"
#include "share/completion.h"

namespace dtrain::cli {
namespace {

std::string function_name(const CommandFacts& command) {
  return "_" + join(command.path, "_");
}

// Inside '...' of zsh and of a specification of _arguments, where []: have a meaning.
std::string zsh_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
      result += c == '\n' ? ' ' : c;
    }
  }
  return result;
}

std::string action(const ValueFacts& value) {
  switch (value.kind) {
    case ValueKind::kChoice:
      return "(" + join(value.choices, " ") + ")";
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kFolder:
      return "_files -/";
    case ValueKind::kRun:
      return "_dtrain_run_names";
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
  }
  return " ";  // describe the value, offer nothing
}

std::string option_spec(const ValueFacts& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    const bool is_long = name.rfind("--", 0) == 0;
    names.push_back(name + (option.kind == ValueKind::kNone ? "" : is_long ? "=" : "+"));
  }
  std::string spec = option.repeatable ? "'*'" : "'(" + join(option.names, " ") + ")'";
  spec += names.size() > 1 ? "{" + join(names, ",") + "}" : names.front();
  spec += "'[" + zsh_escaped(option.description) + "]";
  if (option.kind != ValueKind::kNone) spec += ":" + zsh_escaped(option.value_name) + ":" + action(option);
  return spec + "'";
}

std::string argument_spec(const ValueFacts& argument, std::size_t place) {
  const std::string where = argument.repeatable ? "*" : std::to_string(place) + (argument.required ? "" : ":");
  return "'" + where + ":" + zsh_escaped(argument.names.front()) + ":" + action(argument) + "'";
}

void add_function(const CommandFacts& command, std::string* script) {
  for (const CommandFacts& child : command.commands) add_function(child, script);
  std::string specs;
  for (const ValueFacts& option : command.options) specs += " \\\n    " + option_spec(option);
  if (command.commands.empty()) {
    for (std::size_t i = 0; i < command.arguments.size(); ++i) {
      specs += " \\\n    " + argument_spec(command.arguments[i], i + 1);
    }
    *script += function_name(command) + "() {\n  _arguments -s" + specs + "\n}\n\n";
    return;
  }
  std::string described;
  std::string cases;
  for (const CommandFacts& child : command.commands) {
    described += "        '" + child.path.back() + ":" + zsh_escaped(child.description) + "'\n";
    cases += "        " + child.path.back() + ") " + function_name(child) + " ;;\n";
  }
  *script += function_name(command) + "() {\n  local context state state_descr line\n  typeset -A opt_args\n" +
             "  _arguments -s -C" + specs + " \\\n    '1: :->command' '*:: :->arguments' && return\n" +
             "  case $state in\n    command)\n      local -a commands\n      commands=(\n" + described +
             "      )\n      _describe -t commands command commands\n      ;;\n" +
             "    arguments)\n      case $words[1] in\n" + cases + "      esac\n      ;;\n  esac\n}\n\n";
}

constexpr const char* kZshHead = R"sh(#compdef dtrain
# zsh completion for dtrain, written by `dtrain completion zsh`.
# Use it at once with:  source <(dtrain completion zsh)   (after compinit)

_dtrain_run_names() {
  local -a names
  names=(runs/*(N/:t))
  (( $#names )) && compadd -a names
  _files -/
}

)sh";

// Loaded from $fpath the whole file is the function; sourced it is not.
constexpr const char* kTail = R"sh(if [[ $funcstack[1] == _dtrain ]]; then
  _dtrain "$@"
else
  compdef _dtrain dtrain
fi
)sh";

}  // namespace

std::string zsh_completion(const CommandFacts& app) {
  std::string script = kZshHead;
  add_function(app, &script);
  return script + kTail;
}

}  // namespace dtrain::cli
