// What a library is linked with.
#pragma once

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace dtrain {

// The dynamic section of a file, as readelf prints it: a line "NEEDED … [libx.so]" for each library.
inline std::string dynamic_section(const std::string& file) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(("readelf -d " + file).c_str(), "r"), ::pclose);
  EXPECT_TRUE(pipe);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  return text;
}

}  // namespace dtrain
