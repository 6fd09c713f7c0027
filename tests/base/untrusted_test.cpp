#include "dtrain/base/untrusted.h"

#include <chrono>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "../harness/temporary_folder.h"

namespace dtrain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_json(const std::string& text) {
  return error_of([&] { parse_untrusted(text); });
}

TEST(OpenRegular, RefusesWhatIsNoFileAndDoesNotWait) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { open_regular(pipe); }), pipe.string() + " is a pipe, not a file");
  EXPECT_EQ(error_of([&] { read_file(pipe); }), pipe.string() + " is a pipe, not a file");
  std::filesystem::create_symlink("/dev/zero", folder / "zero");
  EXPECT_THAT(error_of([&] { open_regular(folder / "zero"); }), HasSubstr("is a device"));
  EXPECT_THAT(error_of([&] { open_regular(folder.path()); }), HasSubstr("is a folder"));
  EXPECT_THROW(open_regular(folder / "none"), SystemError);
}

TEST(OpenRegular, ASizeBeyondTheLimitIsRefusedUnread) {
  const TemporaryFolder folder;
  std::ofstream(folder / "sparse") << "{";
  std::filesystem::resize_file(folder / "sparse", 60ull << 30);
  EXPECT_THAT(error_of([&] { read_file(folder / "sparse", 1000); }), HasSubstr("64424509440 bytes long, more than"));
  EXPECT_THAT(error_of([&] { read_json(folder / "sparse"); }), HasSubstr("bytes long, more than"));
}

std::vector<std::string> lines_of(FileLines& lines) {
  std::vector<std::string> all;
  bool cut_off = false;
  for (std::string_view line; lines.next(line, cut_off);) all.emplace_back(line.substr(0, 10));
  return all;
}

TEST(FileLinesTest, EndsAtALineThatIsTooLong) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "one\ntwo\n";
  FileLines whole(open_regular(folder / "file"));
  EXPECT_THAT(lines_of(whole), ElementsAre("one", "two"));
  EXPECT_FALSE(whole.too_long());
  EXPECT_EQ(whole.number(), 2);
  std::filesystem::resize_file(folder / "file", 60ull << 30);  // of zeros, without a newline
  FileLines lines(open_regular(folder / "file"));
  EXPECT_THAT(lines_of(lines), ElementsAre("one", "two"));
  EXPECT_TRUE(lines.too_long());
  EXPECT_EQ(lines.number(), 2);
}

TEST(ParseUntrusted, GivesWhatTheLibraryGives) {
  for (const char* text :
       {"null", "true", "-5", "18446744073709551615", "0.25", R"("a\u00e9\ud83d\ude42")", "[]", "{}", "[[],[{}],1]",
        R"({"a":{"b":[1,2,{"c":null}]},"d":"e"})", R"({"a":1,"b":2,"a":{"x":3}})", " [ 1 , 2 ] "}) {
    EXPECT_EQ(parse_untrusted(text).dump(), Json::parse(text).dump()) << text;
  }
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += "\"key" + std::to_string(i % 900) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  EXPECT_EQ(parse_untrusted(many).dump(), Json::parse(many).dump());
}

TEST(ParseUntrusted, SaysWhereAndWhy) {
  EXPECT_THAT(error_of_json("[1,]"), AllOf(HasSubstr("not valid JSON at byte 4: "), Not(HasSubstr("json.exception"))));
  EXPECT_THAT(error_of_json("{} x"), HasSubstr("at byte 4"));
  EXPECT_THAT(error_of_json(std::string(1 << 20, '"')), testing::SizeIs(testing::Lt(400)));
  EXPECT_THAT(error_of_json("[\"" + std::string(1 << 20, 'x') + "\n\"]"), testing::SizeIs(testing::Lt(400)));
  EXPECT_THAT(error_of_json(std::string(100'000, '[')), HasSubstr("JSON with more than 100 values inside each other"));
  EXPECT_THAT(error_of_json("1e999"), HasSubstr("at byte"));
}

TEST(ParseUntrusted, KnowsATextThatWasCutOff) {
  const std::string whole = R"({"a": [1, "two", {"b": true}]})";
  for (std::size_t length = 1; length < whole.size(); ++length) {
    try {
      parse_untrusted(whole.substr(0, length));
      FAIL() << length;
    } catch (const JsonError& error) {
      EXPECT_TRUE(error.cut_off()) << length << ": " << error.what();
    }
  }
  try {
    parse_untrusted("{\"a\": ]");
  } catch (const JsonError& error) {
    EXPECT_FALSE(error.cut_off());
  }
}

// A deadline against a time that grows with the square: 70 s then, some ten milliseconds now.
TEST(ParseUntrusted, AHundredThousandKeysAreRefusedAtOnce) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of_json(text), HasSubstr("JSON with an object of more than 16384 members"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(TakeOutWrongMembers, NamesEachAndLeavesTheRest) {
  constexpr KnownMember kMembers[] = {{"pid", KnownMember::kInteger},
                                      {"share", KnownMember::kNumber},
                                      {"name", KnownMember::kText | KnownMember::kNull},
                                      {"in.side", KnownMember::kObject},
                                      {"none", KnownMember::kText}};
  Json right = {{"pid", 5}, {"share", 1}, {"name", nullptr}, {"in", {{"side", Json::object()}}}, {"other", 1}};
  const Json before = right;
  EXPECT_THAT(take_out_wrong_members(right, kMembers), ElementsAre());
  EXPECT_EQ(right, before);
  Json wrong = {{"pid", 0.5}, {"share", "x"}, {"name", true}, {"in", {{"side", {1}}, {"more", 2}}}};
  EXPECT_THAT(take_out_wrong_members(wrong, kMembers),
              ElementsAre(R"("pid" is a number, not a whole number)", R"("share" is a text, not a number)",
                          R"("name" is true or false, not a text or null)", R"("in.side" is a list, not an object)"));
  EXPECT_EQ(wrong, Json({{"in", {{"more", 2}}}}));
}

}  // namespace
}  // namespace dtrain
