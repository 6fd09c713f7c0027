#include "dtrain/base/crc32c.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

namespace dtrain {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32c, EachVersionGivesTheValuesOfTheStandard) {  // RFC 3720, B.4
  for (const Crc32cVersion& version : crc32c_versions()) {
    SCOPED_TRACE(version.name);
    EXPECT_EQ(version(bytes_of("")), 0u);
    EXPECT_EQ(version(bytes_of("123456789")), 0xe3069283u);
    EXPECT_EQ(version(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
    EXPECT_EQ(version(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  }
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

TEST(Crc32c, AllVersionsAgreeOnEveryLengthAndPlace) {
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t most) { return random() % (most + 1); };
  std::string data(200'000, '\0');
  for (char& byte : data) byte = static_cast<char>(below(255));
  for (int i = 0; i < 300; ++i) {
    const std::size_t begin = below(70), size = below(i % 3 == 0 ? 100 : i % 3 == 1 ? 2'000 : 190'000);
    const auto part = bytes_of(data).subspan(begin, size);
    const std::size_t middle = below(size);
    for (const Crc32cVersion& version : crc32c_versions()) {
      ASSERT_EQ(version(part), crc32c(part)) << version.name << " " << begin << " " << size;
      ASSERT_EQ(version(part.subspan(middle), version(part.first(middle))), crc32c(part)) << version.name;
    }
  }
}

}  // namespace
}  // namespace dtrain
