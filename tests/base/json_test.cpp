#include "dtrain/base/json.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

TEST(Json, LineKeepsTheOrderAndHasNoNewline) {
  Json value;
  value["z"] = 1;
  value["a"] = "two\nlines";
  EXPECT_EQ(to_line(value), R"({"z":1,"a":"two\nlines"})");
}

TEST(Json, InvalidTextAndNumbersNeverThrow) {
  Json value;
  value["text"] = "a\xff";
  value["number"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(to_line(value), "{\"text\":\"a\xEF\xBF\xBD\",\"number\":null}");
}

TEST(Json, NumbersThatAreNotFiniteAreTexts) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [value, text] :
       {std::pair(1.5, "1.5"), std::pair(kInfinity, R"("inf")"), std::pair(-kInfinity, R"("-inf")")}) {
    EXPECT_EQ(to_line(number_or_text(value)), text);
    EXPECT_EQ(number_of(Json::parse(text)), value);
  }
  // Of either sign: 0.0 / 0.0 has one.
  for (const double sign : {1.0, -1.0}) {
    const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    EXPECT_EQ(to_line(numbers_or_texts({{"loss", nan}})), R"({"loss":"nan"})");
  }
  EXPECT_TRUE(std::isnan(number_of("nan").value()));
  for (const char* other : {"null", R"("1.5")", R"("NaN")", "[1]", "true"}) EXPECT_FALSE(number_of(Json::parse(other)));
}

TEST(Json, AMemberThatIsMissingOrOfAnotherTypeIsEmpty) {
  const Json json = {{"object", {{"a", 1}}}, {"list", {1, 2}}, {"text", "b"}, {"flag", true}, {"real", 1.5}};
  EXPECT_EQ(object_at(json, "object").size(), 1U);
  EXPECT_EQ(list_at(json, "list").size(), 2U);
  EXPECT_EQ(text_at(json, "text"), "b");
  EXPECT_EQ(value_at<bool>(json, "flag"), true);
  EXPECT_EQ(value_at<double>(json, "real"), 1.5);
  EXPECT_EQ(value_at<double>(object_at(json, "object"), "a"), 1.0);
  EXPECT_EQ(value_at<std::int64_t>(object_at(json, "object"), "a"), 1);
  EXPECT_EQ(value_at<std::int64_t>(json, "real"), std::nullopt);
  for (const Json& other : {json, Json(), Json::array(), Json("text")}) {
    EXPECT_EQ(object_at(other, "list"), Json::object());
    EXPECT_EQ(list_at(other, "object"), Json::array());
    EXPECT_EQ(text_at(other, "flag"), "");
    EXPECT_EQ(value_at<bool>(other, "none"), std::nullopt);
  }
}

TEST(Json, ReadNamesFileAndOffset) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "good.json", R"({"a": [1, 2]})");
  EXPECT_EQ(read_json(folder / "good.json")["a"][1], 2);
  write_file_atomic(folder / "bad.json", R"({"a": ])");
  try {
    read_json(folder / "bad.json");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder / "bad.json").string() + ": not valid JSON at byte 7"));
  }
  write_file_atomic(folder / "large.json", R"({"a": 1e999})");
  EXPECT_THROW(read_json(folder / "large.json"), DataError);
  EXPECT_THROW(read_json(folder / "missing.json"), SystemError);
}

}  // namespace
}  // namespace dtrain
