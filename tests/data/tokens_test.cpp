// Flat files of token ids.
#include "dtrain/data/data_sets.h"

#include <gmock/gmock.h>

#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

using TokensTest = FileTest;

template <typename Token>
std::string counting(std::int64_t count) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(i));
  return bytes_of(tokens);
}

TEST_F(TokensTest, TargetsAreOneTokenFurtherOn) {
  const auto check = [&](TokenType type, const std::string& content) {
    const auto dataset = load_tokens(write("file", content), type, 3);
    ASSERT_EQ(dataset->size(), 3);  // 10 tokens: 0-3, 3-6, 6-9
    ASSERT_EQ(dataset->fields().size(), 2u);
    EXPECT_EQ(dataset->fields()[0].name, "features");
    EXPECT_EQ(dataset->fields()[1].name, "target");
    EXPECT_EQ(dataset->fields()[1].type, ElementType::kInt64);
    EXPECT_EQ(dataset->fields()[1].shape, Ids{3});
    EXPECT_EQ(read_field<std::int64_t>(*dataset, 0, {2, 0}), (Ids{6, 7, 8, 0, 1, 2}));
    EXPECT_EQ(read_field<std::int64_t>(*dataset, 1, {2, 0}), (Ids{7, 8, 9, 1, 2, 3}));
  };
  check(TokenType::kUint16, counting<std::uint16_t>(10));
  check(TokenType::kUint32, counting<std::uint32_t>(10));
  check(TokenType::kInt32, counting<std::int32_t>(10));
  check(TokenType::kInt64, counting<std::int64_t>(10));
}

TEST_F(TokensTest, LargeIdsOfUnsignedTypesStayPositive) {
  const auto small = write("small", bytes_of<std::uint16_t>({65535, 65534}));
  EXPECT_EQ(read_field<std::int64_t>(*load_tokens(small, TokenType::kUint16, 1), 1, {0}), Ids{65534});
  const auto large = write("large", bytes_of<std::uint32_t>({4294967295, 1}));
  EXPECT_EQ(read_field<std::int64_t>(*load_tokens(large, TokenType::kUint32, 1), 0, {0}), Ids{4294967295});
}

TEST_F(TokensTest, TokensBehindTheLastWholeSampleAreLeft) {
  for (const auto& [count, samples] : {std::pair(5, 1), {8, 1}, {9, 2}, {12, 2}, {13, 3}}) {
    const auto path = write("file", counting<std::uint16_t>(count));
    EXPECT_EQ(load_tokens(path, TokenType::kUint16, 4)->size(), samples) << count;
  }
}

TEST_F(TokensTest, FilesTooShortOrCutInsideAToken) {
  const auto path = write("file", counting<std::uint16_t>(4));
  EXPECT_THAT(failure([&] { load_tokens(path, TokenType::kUint16, 4); }),
              AllOf(HasSubstr(path.string() + ": offset 8: the file ends here, after 4 tokens"), HasSubstr("shorter")));
  EXPECT_THAT(failure([&] { load_tokens(path, TokenType::kUint16, INT64_MAX); }), HasSubstr("after 4 tokens"));
  EXPECT_THAT(failure([&] { load_tokens(write("empty", ""), TokenType::kInt64, 1); }),
              HasSubstr("empty: the file is empty; was it written"));
  EXPECT_THAT(failure([&] { load_tokens(write("cut", "1234567"), TokenType::kInt32, 1); }),
              HasSubstr("offset 4: the file ends inside a token: its 7 bytes are no multiple of the token's 4"));
  EXPECT_THAT(failure([&] { load_tokens(path, TokenType::kUint16, 0); }), HasSubstr("sequence length of 0"));
  EXPECT_THAT(failure([&] { load_tokens(folder_ / "nowhere", TokenType::kUint16, 4); }), HasSubstr("No such file"));
}

TEST_F(TokensTest, NegativeIdsAreFoundWhereTheyAre) {
  const auto dataset = load_tokens(write("file", bytes_of<std::int32_t>({1, 2, 3, -4, 5})), TokenType::kInt32, 2);
  EXPECT_EQ(read_field<std::int64_t>(*dataset, 0, {0}), (Ids{1, 2}));
  EXPECT_THAT(failure([&] {
                read_field<std::int64_t>(*dataset, 0, {0, 1});
              }),
              AllOf(HasSubstr("offset 12: token id -4 is negative"), HasSubstr("token type")));
}

TEST_F(TokensTest, AFileThatShrinksAndSamplesThatAreNotThere) {
  const auto path = write("file", counting<std::uint16_t>(9));
  const auto dataset = load_tokens(path, TokenType::kUint16, 4);
  EXPECT_THAT(failure([&] { read_field<std::int64_t>(*dataset, 0, {2}); }), HasSubstr("sample 2 of a data set of 2"));
  EXPECT_THAT(failure([&] { read_field<std::int64_t>(*dataset, 0, {-1}); }), HasSubstr("sample -1"));
  std::filesystem::resize_file(path, 10);
  EXPECT_EQ(read_field<std::int64_t>(*dataset, 1, {0}), (Ids{1, 2, 3, 4}));
  EXPECT_THAT(failure([&] { read_field<std::int64_t>(*dataset, 0, {1}); }),
              HasSubstr("offset 10: truncated: the file ends here, though it had 18 bytes"));
}

}  // namespace
}  // namespace dtrain::data
