#include "dtrain/base/text.h"
#include "share/completion.h"

namespace dtrain::cli {
namespace {

// One word for the table, as _dtrain_values of the script expects it.
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

// One line of the table for each command.
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

}  // namespace

std::string bash_completion(const CommandFacts& app) {
  std::string rows;
  add_rows(app, &rows);
  return kBashHead + rows + kBody;
}

}  // namespace dtrain::cli
