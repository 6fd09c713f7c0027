#include "dtrain/base/error.h"

#include <system_error>

namespace dtrain {

SystemError::SystemError(const std::string& what, int code, std::string remedy)
    : Error(what + ": " + std::generic_category().message(code), std::move(remedy)), code_(code) {}

std::string describe(const std::exception& error) {
  std::string text = error.what();
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
