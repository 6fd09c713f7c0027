#include "dtrain/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain {
namespace {

using testing::ElementsAre;
using testing::Optional;

const std::vector<std::string> kKeys{"name", "entrypoint", "max_length", "slots_per_trial", "lr"};

TEST(Nearest, FindsSlips) {
  EXPECT_THAT(nearest("nmae", kKeys), Optional(std::string("name")));
  EXPECT_THAT(nearest("max_lenght", kKeys), Optional(std::string("max_length")));
  EXPECT_THAT(nearest("slot_per_trail", kKeys), Optional(std::string("slots_per_trial")));
  EXPECT_THAT(nearest("l", kKeys), Optional(std::string("lr")));
}

TEST(Nearest, DoesNotGuess) {
  EXPECT_EQ(nearest("checkpoint", kKeys), std::nullopt);
  EXPECT_EQ(nearest("", kKeys), std::nullopt);
  EXPECT_EQ(nearest("name", {}), std::nullopt);
  EXPECT_EQ(nearest(std::string(1'000'000, 'a'), kKeys), std::nullopt);
}

TEST(Nearest, PrefersTheNearest) {
  const std::vector<std::string> words{"batches", "batch", "bathes"};
  EXPECT_THAT(nearest("batchs", words), Optional(std::string("batches")));
}

TEST(JoinAndSplit, AreInverse) {
  EXPECT_THAT(split("a.b..c", '.'), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(split("", '.'), ElementsAre(""));
  EXPECT_EQ(join(split("a.b..c", '.'), "."), "a.b..c");
  EXPECT_EQ(join({}, ", "), "");
}

TEST(Text, TheFirstLineIsOneWithWords) {
  EXPECT_EQ(first_line("one"), "one");
  EXPECT_EQ(first_line("one\ntwo"), "one");
  EXPECT_EQ(first_line("\n \r\n  one two \r\nthree"), "one two");
  EXPECT_EQ(first_line("\n \n"), "");
  EXPECT_EQ(first_line(""), "");
}

TEST(Text, TrimmedHasNoSpaceAtItsEnds) {
  EXPECT_EQ(trimmed("\t one two \r\n"), "one two");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" one\n", " "), "one\n");
}

TEST(Text, HexHasTwoDigitsForEachByte) {
  EXPECT_EQ(to_hex(""), "");
  EXPECT_EQ(to_hex(std::string_view("\x00\x0f\xf0\xff A", 6)), "000ff0ff2041");
}

TEST(RangesText, JoinsNeighbours) {
  EXPECT_EQ(ranges_text(std::vector<int>{}), "");
  EXPECT_EQ(ranges_text(std::vector{3}), "3");
  EXPECT_EQ(ranges_text(std::vector{0, 1, 4}), "0,1,4");
  EXPECT_EQ(ranges_text(std::vector{0, 1, 2, 3, 64, 65, 66}), "0-3,64-66");
}

TEST(CountOf, HasThePluralButForOne) {
  EXPECT_EQ(count_of(0, "rank"), "0 ranks");
  EXPECT_EQ(count_of(1, "rank"), "1 rank");
  EXPECT_EQ(count_of(std::size_t{2000}, "batch"), "2000 batches");
  EXPECT_EQ(count_of(2, "class"), "2 classes");
  EXPECT_EQ(count_of(2, "epoch"), "2 epochs");
}

TEST(ToNumber, TheWholeTextIsTheNumber) {
  EXPECT_EQ(to_number<int>("-12"), -12);
  EXPECT_EQ(to_number<int>("007"), 7);
  EXPECT_EQ(to_number<unsigned>("1f", 16), 31U);
  EXPECT_EQ(to_number<double>("2.5e3"), 2500.0);
  for (const char* text : {"", "-", "x", "1x", "1 ", " 1", "+1", "0x1", "1.0", "2147483648"}) {
    EXPECT_EQ(to_number<int>(text), std::nullopt) << text;
  }
  EXPECT_EQ(to_number<unsigned>("-1"), std::nullopt);
}

TEST(TakeNumber, LeavesWhatFollows) {
  std::string_view text = "12,x";
  EXPECT_EQ(take_number<int>(text), 12);
  EXPECT_EQ(text, ",x");
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, ",x");
}

TEST(RangesText, TakesASeparatorAndTheShortestRange) {
  EXPECT_EQ(ranges_text(std::vector{0, 1, 4, 5, 6}, ", "), "0, 1, 4-6");
  EXPECT_EQ(ranges_text(std::vector{0, 1, 4}, ", ", 2), "0-1, 4");
}

TEST(TakeRanges, LeavesWhatFollows) {
  std::string_view text = "0-2+8x4";
  EXPECT_THAT(take_ranges(text, '+'), ElementsAre(0, 1, 2, 8));
  EXPECT_EQ(text, "x4");
  for (std::string_view wrong : {"", "x", "1-", "-1", "1,", "1-1048576"}) {
    EXPECT_TRUE(take_ranges(wrong).empty()) << wrong;
  }
}

TEST(Html, EscapesWhatHasAMeaning) {
  EXPECT_EQ(html_escaped(R"(a < b && "c" > 'd')"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; &#39;d&#39;");
}

TEST(Utf8, AcceptsWhatIsValid) {
  for (const char* text :
       {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_valid_utf8(text)) << text;
  }
}

TEST(Utf8, RefusesWhatIsNot) {
  for (const char* text : {"\xff", "\x80", "\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                           "\xf0\x80\x80\x80", "\xe2\x82", "\xc3(", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_FALSE(is_valid_utf8(text));
  }
}

}  // namespace
}  // namespace dtrain
