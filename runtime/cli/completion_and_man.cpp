// Completion of the shells and the manual page, written from the CLI11 objects that parse the arguments and print
// --help.
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "dtrain/base/text.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::cli {
namespace {

enum class ValueKind { kNone, kText, kChoice, kFile, kFolder, kRun };

// An option, a flag (kNone), or an argument without a dash.
struct ValueFacts {
  std::vector<std::string> names;  // "-f", "--follow"; an argument's one name ("FILE")
  std::string value_name;          // the name of an option's value in --help: "DIR"
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices;  // with kChoice
  std::string description;
  bool required = false;
  bool repeatable = false;
};

struct CommandFacts {
  std::vector<std::string> path;  // "dtrain", "config", "check"
  std::string description;
  std::string footer;
  std::vector<ValueFacts> options;
  std::vector<ValueFacts> arguments;
  std::vector<CommandFacts> commands;  // hidden ones are left out
};

ValueKind kind_of(const std::string& name) {
  if (name == "FILE" || name == "EXPERIMENT") return ValueKind::kFile;
  if (name == "DIR") return ValueKind::kFolder;
  return name == "RUN" ? ValueKind::kRun : ValueKind::kText;
}

ValueFacts read_option(const CLI::Option& option) {
  ValueFacts facts{.description = option.get_description(), .required = option.get_required()};
  for (const std::string& name : option.get_snames()) facts.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) facts.names.push_back("--" + name);
  const bool argument = facts.names.empty();
  if (argument) facts.names.push_back(option.get_name(true));
  if (option.get_items_expected_max() == 0) return facts;

  facts.repeatable =
      option.get_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  // "TYPE:{one,two}", "TYPE:{one,two}:MORE CHECKS", "INT:NONNEGATIVE"
  const std::string type = option.get_type_name();
  facts.value_name = type.substr(0, type.find(':'));
  facts.kind =
      kind_of(argument && kind_of(facts.value_name) == ValueKind::kText ? facts.names.front() : facts.value_name);
  const auto open = type.find(":{");
  const auto close = type.find('}');
  if (open != std::string::npos && close != std::string::npos && close > open) {
    facts.kind = ValueKind::kChoice;
    facts.choices = split(type.substr(open + 2, close - open - 2), ',');
  }
  return facts;
}

CommandFacts read_command(const CLI::App& app, std::vector<std::string> path) {
  path.push_back(app.get_name());
  CommandFacts facts{.path = path, .description = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    ValueFacts value = read_option(*option);
    (value.names.front().front() == '-' ? facts.options : facts.arguments).push_back(std::move(value));
  }
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) facts.commands.push_back(read_command(*command, path));
  }
  return facts;
}

// Reads the facts. The kind of a value follows from its name in --help: FILE and EXPERIMENT are files, DIR a folder,
// RUN a run; a set of choices (CLI::IsMember) is that set.
CommandFacts read_facts(const CLI::App& app) {
  return read_command(app, {});
}

// "dtrain config check"
std::string full_name(const CommandFacts& command) {
  return join(command.path, " ");
}

// Returns one word for the table, as _dtrain_values of the script expects it.
std::string kind_word(const ValueFacts& value) {
  constexpr std::array kWords{"text", "text", "choice:", "file", "folder", "run"};  // by ValueKind
  return kWords[static_cast<std::size_t>(value.kind)] + join(value.choices, ",");
}

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
  if (value.kind == ValueKind::kChoice) return "(" + join(value.choices, " ") + ")";
  // By ValueKind; " " describes the value and offers nothing.
  constexpr std::array kActions{" ", " ", "", "_files", "_files -/", "_dtrain_run_names"};
  return kActions[static_cast<std::size_t>(value.kind)];
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

struct Entry {
  const char* name;
  const char* text;
};

constexpr Entry kFiles[] = {
    {"runs/NNNN-NAME/",
     "A run: experiment.yaml, plan.json, events.jsonl, metrics.jsonl, logs/, profile/, checkpoints/."},
    {"PREFIX/lib/dtrain/libtorch, ~/.local/share/dtrain/libtorch", "Where dtrain-get-libtorch puts libtorch."},
    {"~/.local/state/dtrain/ledger.db", "Which tasks hold which slots, which tasks wait, and how the others ended."},
    {"PREFIX/share/dtrain/", "Examples: configs/ and examples/."},
};

// Returns text that troff prints unchanged; dashes stay dashes, so that options can be copied.
std::string escaped(const std::string& text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    line_begins = c == '\n';
  }
  return result;
}

std::string bold(const std::string& text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string italic(const std::string& text) {
  return "\\fI" + escaped(text) + "\\fR";
}

// Returns filled paragraphs; indented lines stay as they are.
std::string paragraphs(const std::string& text) {
  std::string result;
  bool verbatim = false;
  for (const std::string& line : split(text, '\n')) {
    const bool indented = line.rfind("  ", 0) == 0;
    if (indented != verbatim) result += indented ? ".PP\n.nf\n" : ".fi\n";
    verbatim = indented;
    result += line.empty() ? ".PP\n" : escaped(line) + "\n";
  }
  return result + (verbatim ? ".fi\n" : "");
}

std::string tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + escaped(text) + "\n";
}

std::string option_tag(const ValueFacts& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    const std::string value = option.kind == ValueKind::kChoice ? join(option.choices, "|") : option.value_name;
    names.push_back(bold(name) + (value.empty() ? "" : " " + italic(value)));
  }
  return join(names, ", ");
}

std::string description_of(const ValueFacts& value) {
  if (value.kind != ValueKind::kChoice || value.names.front().front() == '-') return value.description;
  return value.description + ": " + join(value.choices, " or ");
}

// Adds a heading, arguments, options and the rest of --help for each command that does something.
void add_command(const CommandFacts& command, std::string* page) {
  for (const CommandFacts& child : command.commands) add_command(child, page);
  if (!command.commands.empty()) return;
  std::string usage = bold(full_name(command));
  for (const ValueFacts& argument : command.arguments) {
    const std::string name = italic(argument.names.front());
    usage += argument.required ? " " + name : " [" + name + "]";
  }
  *page += ".SS " + usage + " [options]\n" + escaped(command.description) + ".\n";
  for (const ValueFacts& argument : command.arguments) {
    *page += tagged(italic(argument.names.front()), description_of(argument));
  }
  for (const ValueFacts& option : command.options) *page += tagged(option_tag(option), description_of(option));
  if (!command.footer.empty()) *page += ".PP\n" + paragraphs(command.footer);
}

std::string exit_codes() {
  std::string result;
  for (const ExitCodeMeaning& meaning : kExitCodes) {
    result += tagged(bold(std::to_string(static_cast<int>(meaning.code))),
                     plain(std::string(meaning.meaning) + " " + meaning.details));
  }
  return result;
}

std::string variables() {
  std::string result;
  for (const Variable& variable : kVariables) {
    const std::string text = std::string(variable.effect) + " Read by " + variable.readers + ".";
    result += tagged(bold(join(split(variable.names, ' '), ", ")) + ": " + italic(variable.value), plain(text));
  }
  return result;
}

std::string man_page(const CommandFacts& app, const std::string& version) {
  std::string page = ".TH DTRAIN 1 \"\" \"dtrain " + version + "\" \"User Commands\"\n";
  page += ".SH NAME\ndtrain \\- train libtorch models data\\-parallel, and see where the time goes\n";
  page += ".SH SYNOPSIS\n" + bold("dtrain") + " " + italic("COMMAND") + " [" + italic("options") + "]\n";
  page += ".SH DESCRIPTION\n" + paragraphs(app.description);
  for (const ValueFacts& option : app.options) page += tagged(option_tag(option), option.description);
  page += ".SH COMMANDS\n";
  for (const CommandFacts& command : app.commands) add_command(command, &page);
  page += ".SH EXIT STATUS\n" + exit_codes();
  page += ".SH ENVIRONMENT\n" + variables();
  page += ".SH FILES\n";
  for (const Entry& entry : kFiles) page += tagged(bold(entry.name), entry.text);
  if (!app.footer.empty()) page += ".SH EXAMPLES\n" + paragraphs(app.footer);
  page += ".SH SEE ALSO\n" + bold("dtrain-get-libtorch") + " \\-\\-help; the documents in /usr/share/doc/dtrain\n";
  return page;
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

void add_man(CLI::App& app, ExitCode*) {
  CLI::App* command = app.add_subcommand("man", "Print the man page (troff)");
  command->group("");  // for the build: users have `man dtrain`
  command->callback([&app] { std::fputs(man_page(read_facts(app), rank::version()).c_str(), stdout); });
}

}  // namespace dtrain::cli
