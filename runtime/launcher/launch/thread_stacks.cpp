// The stacks of a rank's threads, which signals make them write (dtrain/base/pulse.h), as text for people.
#include <cxxabi.h>
#include <elf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "dtrain/base/text.h"
#include "dtrain/host/proc_file.h"
#include "launch/hanging_ranks.h"

namespace dtrain::launcher {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kForTrainingThread{2000}, kForOtherThread{250}, kForAllOthers{2000};
constexpr milliseconds kQuiet{60};  // Python's handler writes no end
constexpr milliseconds kPoll{2};
constexpr std::size_t kCallsShown = 12, kLongestFunction = 120;

bool wait_until(milliseconds patience, const std::function<bool()>& done) {
  const auto deadline = SteadyClock::now() + patience;
  while (!done()) {
    if (SteadyClock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

std::string_view text_in(std::span<const std::byte> memory) {
  const auto* const begin = reinterpret_cast<const char*>(memory.data()) + kPulseTextBegins;
  return {begin, ::strnlen(begin, memory.size() - kPulseTextBegins)};
}

// The signals that a thread blocks, as the bits of a number.
std::uint64_t blocked_signals(pid_t pid, pid_t thread) {
  const auto status =
      host::read_proc_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/status");
  constexpr std::string_view kKey = "\nSigBlk:\t";
  const std::size_t at = status ? status->find(kKey) : std::string::npos;
  if (at == std::string::npos) return ~std::uint64_t{0};
  std::string_view digits = std::string_view(*status).substr(at + kKey.size());
  return take_number<std::uint64_t>(digits, 16).value_or(~std::uint64_t{0});
}

std::vector<pid_t> other_threads(pid_t pid, pid_t first) {
  std::vector<pid_t> threads;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", code)) {
    const auto number = to_number<pid_t>(entry.path().filename().string()).value_or(0);
    const bool blocks = blocked_signals(pid, number) >> (stack_signal() - 1) & 1;
    if (number > 0 && number != first && !blocks) threads.push_back(number);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

void send(pid_t pid, pid_t thread, int signal) {
  ::syscall(SYS_tgkill, pid, thread, signal);
}

constexpr std::uint64_t kMostTableBytes = 256u << 20;  // of a table

template <typename Item>
std::vector<Item> read_items(std::ifstream& file, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > kMostTableBytes) return {};
  std::vector<Item> items(bytes / sizeof(Item));
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(items.data()), static_cast<std::streamsize>(items.size() * sizeof(Item)));
  if (!file) items.clear();
  return items;
}

// The functions of a program by their places in it, from its symbol table, for calls of functions that it does not
// export.
class ProgramSymbols {
 public:
  // No symbols if the file cannot be read, is no ELF file of this machine, or was stripped.
  explicit ProgramSymbols(const std::string& file);
  // Returns the name of the function that has this address of the file; empty: not known.
  std::string at(std::uint64_t address) const;

 private:
  struct Function {
    std::uint64_t begin, end;
    std::string name;
  };
  std::vector<Function> functions_;  // by `begin`
};

ProgramSymbols::ProgramSymbols(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const auto headers = read_items<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr));
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0) return;
  if (headers[0].e_ident[EI_CLASS] != ELFCLASS64 || headers[0].e_shentsize != sizeof(Elf64_Shdr)) return;
  const auto sections =
      read_items<Elf64_Shdr>(file, headers[0].e_shoff, std::uint64_t{headers[0].e_shnum} * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto symbols = read_items<Elf64_Sym>(file, section.sh_offset, section.sh_size);
    const Elf64_Shdr& strings = sections[section.sh_link];
    auto names = read_items<char>(file, strings.sh_offset, strings.sh_size);
    if (names.empty()) continue;
    names.back() = '\0';
    for (const Elf64_Sym& symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0 || symbol.st_name >= names.size()) continue;
      functions_.push_back({symbol.st_value, symbol.st_value + symbol.st_size, names.data() + symbol.st_name});
    }
  }
  std::sort(functions_.begin(), functions_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

std::string ProgramSymbols::at(std::uint64_t address) const {
  const auto after = std::upper_bound(functions_.begin(), functions_.end(), address,
                                      [](std::uint64_t value, const Function& each) { return value < each.begin; });
  if (after == functions_.begin() || address >= std::prev(after)->end) return {};
  return std::prev(after)->name;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return text ? text.get() : name;
}

// Where the arguments or template arguments of a function's name begin.
std::size_t end_of_name(const std::string& function, const char* at) {
  return function.find_first_of(at, function.starts_with("(anonymous namespace)") ? 1 : 0);
}

// A call as glibc writes it: "/lib/libc.so.6(clock_nanosleep+0x63) [0x7f…]", "./trial(+0x1234) [0x55…]".
struct NativeCall {
  std::string file;  // its name without folders
  std::string function;
  std::string text() const { return function + " in " + file; }
};

std::optional<NativeCall> native_call(std::string_view line, const std::string& program,
                                      const ProgramSymbols& symbols) {
  const std::size_t open = line.rfind('('), plus = line.rfind('+'), close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const std::string path(line.substr(0, open));
  NativeCall call{.file = path.substr(path.rfind('/') + 1)};
  if (plus == std::string_view::npos || plus < open) return call;
  call.function = demangled(std::string(line.substr(open + 1, plus - open - 1)));
  const auto offset = to_number<std::uint64_t>(line.substr(plus + 3, close - plus - 3), 16);  // after "+0x"
  // The address is that of the instruction after the call.
  if (call.function.empty() && call.file == program && offset) call.function = demangled(symbols.at(*offset - 1));
  if (call.function.size() > kLongestFunction) {
    call.function = call.function.substr(0, std::min(end_of_name(call.function, "("), kLongestFunction)) + "(…)";
  }
  return call;
}

bool is_users_own(const NativeCall& call) {
  constexpr std::array kOfOthers{"libc.so",    "libc-",     "libm.so",  "libpthread", "ld-linux",
                                 "linux-vdso", "libstdc++", "libgcc_s", "libtorch",   "libc10",
                                 "libdtrain",  "libgomp",   "libcuda",  "libnccl",    "libpython",
                                 "python3",    "_native.",  "libmpi",   "libopen-"};
  // Templates of libraries are compiled into programs. A result's type stands before their name.
  constexpr std::array kNamespaces{"std::", "__gnu_cxx::", "at::", "c10::", "torch::", "dtrain::", "pybind11::"};
  const std::string head = call.function.substr(0, end_of_name(call.function, "(<"));
  const std::string name = head.substr(head.rfind(' ') + 1);
  const auto begins = [](const std::string& text) {
    return [&](const char* begin) { return text.starts_with(begin); };
  };
  return std::none_of(kOfOthers.begin(), kOfOthers.end(), begins(call.file)) &&
         std::none_of(kNamespaces.begin(), kNamespaces.end(), begins(name));
}

// A call as Python's faulthandler writes it: `File "train.py", line 12 in train_batch`.
struct PythonCall {
  std::string file, line, function;
  std::string text() const { return file + ":" + line + " in " + function; }
};

std::optional<PythonCall> python_call(std::string_view line) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ", kIn = " in ";
  if (!line.starts_with(kFile)) return std::nullopt;
  const std::size_t end = line.find(kLine), in = line.rfind(kIn);
  if (end == std::string_view::npos || in == std::string_view::npos || in < end) return std::nullopt;
  return PythonCall{std::string(line.substr(kFile.size(), end - kFile.size())),
                    std::string(line.substr(end + kLine.size(), in - end - kLine.size())),
                    std::string(line.substr(in + kIn.size()))};
}

bool is_users_own(const PythonCall& call) {
  for (const char* folder : {"/site-packages/", "/dist-packages/", "/lib/python3"}) {
    if (call.file.find(folder) != std::string::npos) return false;
  }
  std::error_code code;
  const bool is_of_dtrain =
      std::filesystem::exists(std::filesystem::path(call.file).parent_path() / "_native.pyi", code);
  return !is_of_dtrain && !call.file.starts_with("<");
}

// Sets `calls` and `place` from the calls of one thread.
template <typename Call>
void show(ThreadStacks& stacks, const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    if (stacks.calls.size() < kCallsShown) stacks.calls.push_back(call.text());
    if (stacks.place.empty() && is_users_own(call)) stacks.place = call.text();
  }
}

}  // namespace

ThreadStacks read_stacks(std::string_view text, const std::string& program, const std::string& file) {
  const ProgramSymbols symbols(file);
  std::string python_first, python, native;
  std::vector<PythonCall> python_calls;
  std::vector<NativeCall> native_calls;
  bool in_native = false, in_current = false, is_first = true;
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("thread ")) {
      in_native = true;
      native += line + "\n";
    } else if (line.starts_with("end ")) {
      in_native = is_first = false;
      native += "\n";
    } else if (in_native) {
      const auto call = native_call(line, program, symbols);
      if (!call || call->function.empty()) continue;
      native += "  " + call->text() + "\n";
      if (is_first) native_calls.push_back(*call);
    } else {
      if (line.starts_with("Thread ") || line.starts_with("Current thread ")) in_current = line.starts_with("Current");
      if (const auto call = python_call(line); call && in_current) python_calls.push_back(*call);
      if (!line.empty()) (in_current ? python_first : python) += line + "\n";
    }
  }
  ThreadStacks stacks;
  if (!python_first.empty() || !python.empty()) stacks.text = "Python:\n" + python_first + python + "\nC++:\n";
  stacks.text += native;
  python_calls.empty() ? show(stacks, native_calls) : show(stacks, python_calls);
  return stacks;
}

ThreadStacks take_stacks(pid_t pid, const PulsePage& page, std::span<const std::byte> memory, bool stopped) {
  const pid_t training = page.thread;
  const auto length = [&] { return text_in(memory).size(); };
  const auto has_ended = [&](pid_t thread) {
    return text_in(memory).find("end " + std::to_string(thread) + "\n") != std::string_view::npos;
  };
  const std::uint32_t handlers = page.handlers;
  if (handlers & PulsePage::kPythonStacks) {
    send(pid, training, python_stack_signal());
    if (stopped) ::kill(pid, SIGCONT);
    wait_until(kForTrainingThread, [&] { return length() > 0; });
    for (std::size_t before = 0; before != length();) {
      before = length();
      std::this_thread::sleep_for(kQuiet);
    }
  }
  if (handlers & PulsePage::kStacks) {
    send(pid, training, stack_signal());
    if (stopped) ::kill(pid, SIGCONT);
    wait_until(kForTrainingThread, [&] { return has_ended(training); });
    const auto deadline = SteadyClock::now() + kForAllOthers;
    for (const pid_t thread : other_threads(pid, training)) {
      if (SteadyClock::now() > deadline) break;
      send(pid, thread, stack_signal());
      wait_until(kForOtherThread, [&] { return has_ended(thread); });
    }
  }
  std::error_code code;
  const std::string file = "/proc/" + std::to_string(pid) + "/exe";
  std::string program = std::filesystem::read_symlink(file, code).filename();
  program = program.substr(0, program.find(" (deleted)"));  // it was built anew meanwhile
  return read_stacks(text_in(memory), program, file);
}

}  // namespace dtrain::launcher
