#include "dtrain/base/error.h"

#include <filesystem>
#include <new>
#include <system_error>

#include <nlohmann/json.hpp>

#include "dtrain/base/limits.h"
#include "dtrain/base/untrusted.h"

namespace dtrain {
namespace {

constexpr std::string_view kOutOfMemory = "out of memory: ";

// "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8
// bytes. Error code 12 (Cannot allocate memory)", as libtorch says it, becomes "8 bytes could not be had".
void shorten_allocator_text(std::string& text) {
  constexpr std::string_view kCannot = "can't allocate memory: you tried to allocate ";
  const std::size_t at = text.find(kCannot);
  const std::size_t number = at + kCannot.size();
  const std::size_t end = at == std::string::npos ? at : text.find_first_not_of("0123456789", number);
  if (end == std::string::npos || end == number) return;
  const std::size_t enforce = text.rfind("[enforce fail", at);
  const std::size_t from = enforce != std::string::npos ? enforce : at < 2 ? at : text.rfind(' ', at - 2) + 1;
  std::size_t to = std::min(text.size(), text.find('\n', end));
  constexpr std::string_view kReason = "(Cannot allocate memory)";
  if (const std::size_t reason = text.find(kReason, end); reason < to) to = reason + kReason.size();
  text.replace(from, to - from, text.substr(number, end - number) + " bytes could not be had");
}

// Names the limit behind an error whose own text does not: one of libtorch's, Python's or NumPy's, too.
std::string with_limit(std::string text) {
  if (text.find("RLIMIT_") != std::string::npos || text.find(kOutOfMemory) != std::string::npos) return text;
  for (const char* words : {"can't allocate memory", "MemoryError", "Unable to allocate "}) {
    if (text.find(words) == std::string::npos) continue;
    shorten_allocator_text(text);
    return std::string(kOutOfMemory) + text + "; " + limit_of_memory();
  }
  if (text.find("can't start new thread") != std::string::npos) text += "; " + limit_of_processes();
  return text;
}

// Returns what() in words of ours, where a library has written it.
std::string own_words(const std::exception& error) {
  if (const auto* json = dynamic_cast<const nlohmann::detail::exception*>(&error)) {
    return "a JSON value is not as dtrain writes it: " + json_reason(*json);
  }
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string path = file->path1().empty() ? "a file" : file->path1().string();
    return "cannot use " + path + (file->path2().empty() ? "" : " and " + file->path2().string()) + ": " +
           file->code().message();
  }
  return error.what();
}

std::string text_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return std::string(kOutOfMemory) + limit_of_memory();
  if (is_limit_error(error)) {
    return "a thread could not be started: " + std::string(error.what()) + "; " + limit_of_processes();
  }
  return with_limit(own_words(error));
}

}  // namespace

SystemError::SystemError(const std::string& what, int code, std::string remedy)
    : Error(what + ": " + std::generic_category().message(code), std::move(remedy)), code_(code) {}

std::string describe(const std::exception& error) {
  std::string text = text_of(error);
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    text += ": " + describe(inner);
  } catch (...) {
    text += ": an exception of an unknown type";
  }
  return text;
}

}  // namespace dtrain
