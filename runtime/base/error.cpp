#include "dtrain/base/error.h"

#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

namespace dtrain {

SystemError::SystemError(const std::string& what, int code, std::string remedy)
    : Error(what + ": " + std::generic_category().message(code), std::move(remedy)), code_(code) {}

namespace {

// Returns what() in words of ours, where a library has written it.
std::string own_words(const std::exception& error) {
  if (const auto* json = dynamic_cast<const nlohmann::detail::exception*>(&error)) {
    std::string reason = json->what();  // opens with the library's name and a number in brackets
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    return "a JSON value is not as dtrain writes it: " + reason;
  }
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string path = file->path1().empty() ? "a file" : file->path1().string();
    return "cannot use " + path + (file->path2().empty() ? "" : " and " + file->path2().string()) + ": " +
           file->code().message();
  }
  return error.what();
}

}  // namespace

std::string describe(const std::exception& error) {
  std::string text = own_words(error);
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
