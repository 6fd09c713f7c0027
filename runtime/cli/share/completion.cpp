// The completion scripts of the shells.
#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/base/text.h"
#include "share/command_facts.h"

namespace dtrain::cli {
namespace {

// Returns one word for the table, as _dtrain_values of the script expects it.
std::string kind_word(const ValueFacts& value) {
  switch (value.kind) {
    case ValueKind::kChoice:
      return "choice:" + join(value.choices, ",");
    case ValueKind::kFile:
      return "file";
    case ValueKind::kFolder:
      return "folder";
    case ValueKind::kRun:
      return "run";
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
  }
  return "text";
}

// Adds one line of the table for each command.
void add_rows(const CommandFacts& command, std::string* rows) {
  std::vector<std::string> commands;
  std::vector<std::string> options;
  std::vector<std::string> valued;
  std::vector<std::string> arguments;
  for (const CommandFacts& child : command.commands) commands.push_back(child.path.back());
  for (const ValueFacts& option : command.options) {
    for (const std::string& name : option.names) {
      options.push_back(name);
      if (option.kind != ValueKind::kNone) valued.push_back(name + "=" + kind_word(option));
    }
  }
  for (const ValueFacts& argument : command.arguments) {
    arguments.push_back(kind_word(argument) + (argument.repeatable ? "..." : ""));
  }
  *rows += "    '" + full_name(command) + "') commands='" + join(commands, " ") + "' options='" + join(options, " ") +
           "' valued='" + join(valued, " ") + "' arguments='" + join(arguments, " ") + "' ;;\n";
  for (const CommandFacts& child : command.commands) add_rows(child, rows);
}

constexpr const char* kBashHead = R"sh(# bash completion for dtrain, written by `dtrain completion bash`.
# Use it at once with:  source <(dtrain completion bash)

# What a command takes: its commands, options, options that have a value (with its kind), and the kinds of its arguments
# (with dots: of all further ones too).
_dtrain_describe() {
  case "$1" in
)sh";

constexpr const char* kBody = R"sh(  esac
}

# The words of a kind that begin with $2, each with $3 before it.
_dtrain_values() {
  case "$1" in
    file) compopt -o filenames 2>/dev/null; compgen -P "$3" -f -- "$2" ;;
    folder) compopt -o filenames 2>/dev/null; compgen -P "$3" -d -- "$2" ;;
    run)
      compgen -P "$3" -W "$(cd runs 2>/dev/null && compgen -d)" -- "$2"
      [[ $2 != */* ]] || compgen -P "$3" -d -- "$2"
      ;;
    choice:*) local words=${1#choice:}; compgen -P "$3" -W "${words//,/ }" -- "$2" ;;
  esac
}

# The kind of the value of option $1 of the described command; nothing for a flag.
_dtrain_kind() {
  local pair
  for pair in $valued; do
    [[ $pair != "$1="* ]] || echo "${pair#*=}"
  done
}

_dtrain() {
  # Readline takes --option=value for three words.
  local line=() i glue=''
  for ((i = 0; i <= COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} == '=' && ${#line[@]} -gt 1 ]]; then
      line[-1]+='=' glue=1
    elif [[ $glue ]]; then
      line[-1]+=${COMP_WORDS[i]} glue=''
    else
      line+=("${COMP_WORDS[i]}")
    fi
  done

  local commands options valued arguments command=dtrain count=0 kind='' word
  _dtrain_describe dtrain
  for word in "${line[@]:1:${#line[@]}-2}"; do
    if [[ $kind ]]; then
      kind=''
    elif [[ $word == -* ]]; then
      [[ $word == *=* ]] || kind=$(_dtrain_kind "$word")
    elif [[ " $commands " == *" $word "* ]]; then
      command+=" $word"
      _dtrain_describe "$command"
    else
      count=$((count + 1))
    fi
  done

  local current=${line[-1]} typed=${COMP_WORDS[COMP_CWORD]} kinds
  if [[ $kind ]]; then
    mapfile -t COMPREPLY < <(_dtrain_values "$kind" "$current")
  elif [[ $current == --*=* ]]; then
    word=''
    [[ $typed != --*=* ]] || word=${current%%=*}=
    mapfile -t COMPREPLY < <(_dtrain_values "$(_dtrain_kind "${current%%=*}")" "${current#*=}" "$word")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ $commands ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  else
    read -ra kinds <<<"$arguments"
    [[ $arguments != *... || $count -lt ${#kinds[@]} ]] || count=$((${#kinds[@]} - 1))
    kind=${kinds[count]-}
    mapfile -t COMPREPLY < <(_dtrain_values "${kind%...}" "$current")
  fi
}

complete -F _dtrain dtrain
)sh";

std::string bash_completion(const CommandFacts& app) {
  std::string rows;
  add_rows(app, &rows);
  return kBashHead + rows + kBody;
}

std::string function_name(const CommandFacts& command) {
  return "_" + join(command.path, "_");
}

// Escapes text inside '...' of zsh and of a specification of _arguments, where []: have a meaning.
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

// The whole file is the function if zsh loads it from $fpath, but not if it is sourced.
constexpr const char* kTail = R"sh(if [[ $funcstack[1] == _dtrain ]]; then
  _dtrain "$@"
else
  compdef _dtrain dtrain
fi
)sh";

std::string zsh_completion(const CommandFacts& app) {
  std::string script = kZshHead;
  add_function(app, &script);
  return script + kTail;
}

}  // namespace

void add_completion(CLI::App& app, ExitCode*) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print the completion script for a shell");
  command->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->footer(
      "To use it in the current shell:    source <(dtrain completion bash)\n"
      "An installed package has put both scripts where the shells look for them.");
  command->callback([&app, shell] {
    const CommandFacts facts = read_facts(app);
    std::fputs((*shell == "bash" ? bash_completion(facts) : zsh_completion(facts)).c_str(), stdout);
  });
}

}  // namespace dtrain::cli
