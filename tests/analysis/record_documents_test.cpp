// docs/profile-format.md has the keys of each record as it is declared, and docs/profile-tables.md each column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/export.h"
#include "dtrain/base/file.h"

namespace dtrain::analysis {
namespace {

using testing::IsSupersetOf;
using testing::UnorderedElementsAreArray;
using Names = std::set<std::string>;

// The lines of the section with this heading.
std::vector<std::string> section(const std::string& document, const std::string& heading) {
  std::istringstream text(read_file(std::string(DTRAIN_SOURCE_DIR "/docs/") + document));
  std::vector<std::string> lines;
  bool is_in = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("#")) is_in = line == heading;
    if (is_in) lines.push_back(line);
  }
  EXPECT_FALSE(lines.empty()) << document << " has no " << heading;
  return lines;
}

// What `line` names in code's type.
void add_names(const std::string& line, Names& names) {
  static const std::regex kName("`([a-z0-9_]+)`");
  for (std::sregex_iterator match(line.begin(), line.end(), kName), end; match != end; ++match)
    names.insert((*match)[1]);
}

// The keys of the section's first table.
Names keys_of_table(const std::vector<std::string>& lines) {
  Names keys;
  bool is_in = false;
  for (const std::string& line : lines) {
    if (is_in && !line.starts_with("|")) break;
    is_in = line.starts_with("|");
    if (is_in) add_names(line.substr(0, line.find('|', 1)), keys);
  }
  return keys;
}

Names names_in(const std::vector<std::string>& lines) {
  Names names;
  for (const std::string& line : lines) add_names(line, names);
  return names;
}

struct Collect {
  Names& names;
  template <typename T>
  void operator()(profile::Key key, const T& value) const {
    if constexpr (std::is_same_v<T, LoaderUsage>) {
      T::fields(*this, value);
    } else {
      names.emplace(key.name);
    }
  }
};

template <typename T>
Names keys() {
  Names names;
  const T record{};
  T::fields(Collect{names}, record);
  return names;
}

TEST(RecordDocuments, TablesHaveTheKeysOfTheRecords) {
  const auto table = [](const char* kind) { return keys_of_table(section("profile-format.md", kind)); };
  EXPECT_THAT(table("### step"), UnorderedElementsAreArray(keys<StepLine>()));
  EXPECT_THAT(table("### collective"), UnorderedElementsAreArray(keys<CollectiveLine>()));
  EXPECT_THAT(table("### loader"), UnorderedElementsAreArray(keys<LoaderLine>()));
  EXPECT_THAT(table("### scope"), UnorderedElementsAreArray(keys<ScopeLine>()));
  EXPECT_THAT(table("### memory"), UnorderedElementsAreArray(keys<MemoryLine>()));
  EXPECT_THAT(table("### window"), UnorderedElementsAreArray(keys<profile::WindowRecord>()));
}

TEST(RecordDocuments, SectionsWithoutATableNameAllKeysOfTheirRecords) {
  const auto words = [](const char* kind) { return names_in(section("profile-format.md", kind)); };
  EXPECT_THAT(words("### clock"), IsSupersetOf(keys<ClockLine>()));
  EXPECT_THAT(words("### part"), IsSupersetOf(keys<PartLine>()));
  EXPECT_THAT(words("### device_memory"), IsSupersetOf(keys<DeviceMemoryLine>()));
  EXPECT_THAT(words("### window"), IsSupersetOf(keys<profile::CollectiveSums>()));
  EXPECT_THAT(words("### window"), IsSupersetOf(keys<profile::LoaderSums>()));
  EXPECT_THAT(words("### window"), IsSupersetOf(keys<profile::ScopeSums>()));
  Names ends = words("### end");
  ends.merge(words("### lost and end"));
  EXPECT_THAT(ends, IsSupersetOf(keys<EndLine>()));
}

TEST(RecordDocuments, EveryTableAndColumnIsDescribed) {
  const Names of_steps = keys_of_table(section("profile-tables.md", "## steps"));
  for (const Table& table : run_tables()) {
    Names described = names_in(section("profile-tables.md", "## " + table.name));
    described.insert(of_steps.begin(), of_steps.end());  // the phases, to which other sections refer
    for (const Column& column : table.columns)
      EXPECT_TRUE(described.contains(column.name)) << table.name << "." << column.name;
  }
}

}  // namespace
}  // namespace dtrain::analysis
