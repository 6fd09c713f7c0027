// Documents of tokens, padded and packed.
#include "dtrain/data/documents.h"

#include <set>

#include <gmock/gmock.h>

#include "dtrain/data/formats.h"
#include "dtrain/data/loader.h"
#include "file_test.h"

namespace dtrain::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kEnd = 9;

// Each field of a batch.
using Batch = std::vector<Ids>;

Batch batch_of(const Dataset& dataset, const std::vector<std::int64_t>& samples) {
  const auto allocate = [](std::size_t bytes) {
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(::operator new(bytes)),
                                      [](std::byte* memory) { ::operator delete(memory); });
  };
  const auto builder = dataset.begin({}, static_cast<std::int64_t>(samples.size()), allocate);
  builder->read(0, samples);
  const HostBatch host = builder->finish();
  Batch batch;
  for (std::size_t f = 0; f < host.fields.size(); ++f) {
    const Field field{dataset.fields()[f].name, dataset.fields()[f].type, host.shapes[f]};
    Ids& numbers = batch.emplace_back(field.bytes() * samples.size() / sizeof(std::int64_t));
    std::memcpy(numbers.data(), host.fields[f].get(), numbers.size() * sizeof(std::int64_t));
  }
  return batch;
}

class DocumentsTest : public FileTest {
 protected:
  DocumentFiles files(const std::vector<std::vector<std::uint16_t>>& contents, std::int64_t length) const {
    DocumentFiles documents{{}, TokenType::kUint16, length};
    for (const auto& tokens : contents) {
      documents.files.push_back(write(std::to_string(documents.files.size()) + ".bin", bytes_of(tokens)));
    }
    return documents;
  }
};

TEST_F(DocumentsTest, ArePaddedToTheLongestOfTheirBatch) {
  const auto dataset = padded_documents(files({{1, 2, 3, kEnd, 4, kEnd, kEnd, 5, 6}, {7, 8, kEnd}}, 10),
                                        {.end_token = kEnd, .pad_token = 77, .mask = true, .lengths = true});
  ASSERT_EQ(dataset->size(), 4);  // the end token alone is no document; the last one of a file may lack it
  EXPECT_THAT(batch_of(*dataset, {0, 1}),
              ElementsAre(ElementsAre(1, 2, 3, 4, 77, 77), ElementsAre(2, 3, 9, 9, -100, -100),
                          ElementsAre(1, 1, 1, 1, 0, 0), ElementsAre(3, 1)));
  EXPECT_THAT(batch_of(*dataset, {3, 2}), ElementsAre(ElementsAre(7, 8, 5, 77), ElementsAre(8, 9, 6, -100),
                                                      ElementsAre(1, 1, 1, 0), ElementsAre(2, 1)));
  EXPECT_EQ(dataset->fields()[0].shape, Ids{Field::kAnyExtent});
  EXPECT_EQ(dataset->fields()[2].name, "mask");
  EXPECT_EQ(dataset->fields()[3].name, "lengths");
}

TEST_F(DocumentsTest, ArePaddedToAMultipleWithTheValuesThatAreGiven) {
  const auto documents = files({{1, 2, 3, kEnd, 4, kEnd}}, 10);
  const auto dataset = padded_documents(documents, {.end_token = kEnd, .pad_target = -1, .multiple_of = 4});
  EXPECT_THAT(batch_of(*dataset, {1, 0}),
              ElementsAre(ElementsAre(4, 0, 0, 0, 1, 2, 3, 0), ElementsAre(9, -1, -1, -1, 2, 3, 9, -1)));
}

TEST_F(DocumentsTest, AreNeverPaddedBeyondTheSequenceLength) {
  const auto documents = files({{1, 2, 3, 4, 5, kEnd}}, 5);
  const auto dataset = padded_documents(documents, {.end_token = kEnd, .multiple_of = 4});
  EXPECT_THAT(batch_of(*dataset, {0}), ElementsAre(ElementsAre(1, 2, 3, 4, 5), ElementsAre(2, 3, 4, 5, 9)));
  EXPECT_THROW(padded_documents(documents, {.end_token = kEnd, .multiple_of = 0}), DataError);
}

TEST_F(DocumentsTest, OfOneTokenKeepAPositionInARow) {
  const auto dataset =
      packed_documents(files({{1, kEnd, kEnd, 2, 3, kEnd}}, 5), {.end_token = kEnd, .documents = true});
  EXPECT_THAT(batch_of(*dataset, {0}),
              ElementsAre(ElementsAre(1, 9, 9, 2, 3), ElementsAre(9, -100, -100, 3, 9), ElementsAre(0, 0, 1, 2, 2)));
}

// The name of what the ranks of a host share goes through messages of limited size.
TEST_F(DocumentsTest, ShareUnderAShortName) {
  DocumentFiles many = files({{1, 2, kEnd}}, 5);
  many.files = std::vector<std::filesystem::path>(500, many.files.front());
  std::string name;
  padded_documents(many, {.end_token = kEnd}, [&](const std::string& of_share, const auto& make) {
    name = of_share;
    return make();
  });
  EXPECT_LT(name.size(), 4096u);
}

// Every token but the first of a document is a target once, however the documents become samples.
TEST_F(DocumentsTest, LongOnesBecomeSeveralSamples) {
  const auto documents = files({{1, 2, 3, 4, 5, 6, 7, kEnd, 8, kEnd}}, 3);
  const auto padded = padded_documents(documents, {.end_token = kEnd, .lengths = true});
  EXPECT_THAT(batch_of(*padded, {0, 1, 2, 3}),
              ElementsAre(ElementsAre(1, 2, 3, 4, 5, 6, 7, 0, 0, 8, 0, 0),
                          ElementsAre(2, 3, 4, 5, 6, 7, 9, -100, -100, 9, -100, -100), ElementsAre(3, 3, 1, 1)));
  const auto packed = packed_documents(documents, {.end_token = kEnd, .positions = true, .documents = true});
  ASSERT_EQ(packed->size(), 3);  // the rest of the long one and the short one share a row
  EXPECT_THAT(batch_of(*packed, {2, 0}), ElementsAre(ElementsAre(7, 9, 8, 1, 2, 3), ElementsAre(9, -100, 9, 2, 3, 4),
                                                     ElementsAre(0, 1, 0, 0, 1, 2), ElementsAre(0, 0, 1, 0, 0, 0)));
}

TEST_F(DocumentsTest, ArePackedWholeInTheOrderOfTheFile) {
  const auto dataset =
      packed_documents(files({{1, kEnd, 2, 3, kEnd, 4, 5, 6, 7, kEnd, kEnd, 8, kEnd}, {1, 1, kEnd}}, 5),
                       {.end_token = kEnd, .pad_token = 77, .positions = true, .documents = true});
  ASSERT_EQ(dataset->size(), 4);
  EXPECT_THAT(batch_of(*dataset, {0}), ElementsAre(ElementsAre(1, 9, 2, 3, 77), ElementsAre(9, -100, 3, 9, -100),
                                                   ElementsAre(0, 1, 0, 1, 0), ElementsAre(0, 0, 1, 1, -1)));
  EXPECT_THAT(batch_of(*dataset, {1})[0], ElementsAre(4, 5, 6, 7, 77));
  EXPECT_THAT(batch_of(*dataset, {2})[0], ElementsAre(8, 77, 77, 77, 77));
  EXPECT_THAT(batch_of(*dataset, {3})[0], ElementsAre(1, 1, 77, 77, 77));  // no row has documents of two files
  EXPECT_THAT(dataset->where(1), HasSubstr("0.bin, offset 10"));
  EXPECT_THAT(dataset->where(3), HasSubstr("1.bin, offset 0"));
}

TEST_F(DocumentsTest, AreFoundAcrossThePiecesThatAreScanned) {
  std::vector<std::uint16_t> tokens;  // more than two pieces of 1 MiB
  while (tokens.size() < 1'200'000) {
    for (int i = 0; i < 99; ++i) tokens.push_back(static_cast<std::uint16_t>(10 + tokens.size() / 100));
    tokens.push_back(kEnd);
  }
  const auto dataset = padded_documents(files({tokens}, 99), {.end_token = kEnd});
  ASSERT_EQ(dataset->size(), 12'000);
  for (const std::int64_t sample : {0, 5'242, 5'243, 11'999}) {
    const Batch batch = batch_of(*dataset, {sample});
    ASSERT_EQ(batch[0].size(), 99u);
    EXPECT_EQ(batch[0].front(), 10 + sample);
    EXPECT_EQ(batch[0].back(), 10 + sample);
    EXPECT_EQ(batch[1].back(), kEnd);
  }
  const Blocks blocks = dataset->blocks();
  ASSERT_EQ(blocks.samples.size(), 1u);
  EXPECT_EQ(blocks.samples[0], 12'000);
  dataset->will_read(0, 12'000);
}

TEST_F(DocumentsTest, ErrorsNameTheFile) {
  const auto without_end = files({{1, 2, 3}}, 4);
  EXPECT_THAT(failure([&] { padded_documents(without_end, {.end_token = kEnd}); }),
              HasSubstr("0.bin: offset 6: no document ends before the file does: no token is 9, the end token"));
  EXPECT_THAT(failure([&] {
                packed_documents(files({{kEnd, kEnd}}, 4), {.end_token = kEnd});
              }),
              HasSubstr("no document has two tokens"));
  EXPECT_THAT(failure([&] {
                packed_documents(files({{1, kEnd}}, 0), {.end_token = kEnd});
              }),
              HasSubstr("a sequence length of 0"));
  const DocumentFiles negative{{write("n", bytes_of<std::int32_t>({1, 2, kEnd, 3, -4, kEnd}))}, TokenType::kInt32, 4};
  const auto dataset = padded_documents(negative, {.end_token = kEnd});
  EXPECT_THAT(batch_of(*dataset, {0})[0], ElementsAre(1, 2));
  EXPECT_THAT(failure([&] { batch_of(*dataset, {1}); }), HasSubstr("n: offset 16: token id -4 is negative"));
  EXPECT_THAT(failure([&] { batch_of(*dataset, {2}); }), HasSubstr("sample 2 of a data set of 2"));
  std::filesystem::resize_file(negative.files[0], 8);
  EXPECT_THAT(failure([&] { batch_of(*dataset, {0}); }), HasSubstr("truncated: the file ends here"));
}

TEST_F(DocumentsTest, TransformsThatDoNotFitAreErrors) {
  const Source source{{"file", write("a.bin", bytes_of<std::uint16_t>({1, 2, kEnd}))}};
  const Tokens tokens{.sequence_length = 2};
  const auto open = [&](const Format& format, const std::vector<Transform>& transforms) {
    return failure([&] { open_source(format, source, transforms, no_sharing()); });
  };
  EXPECT_EQ(open(tokens, {PadToLongest{.end_token = kEnd}}), "");
  EXPECT_EQ(open(tokens, {}), "");
  EXPECT_THAT(open(tokens, {Normalize()}), HasSubstr("normalize is for pictures, and these are tokens"));
  EXPECT_THAT(open(tokens, {PackTokens{.end_token = kEnd}, PadToLongest{.end_token = kEnd}}),
              HasSubstr("pad_to_longest cannot come after pack_tokens"));
  EXPECT_THAT(open(Csv(), {PackTokens{.end_token = kEnd}}), HasSubstr("transforms have no effect with format csv"));
  EXPECT_THAT(problem_of(std::vector<Transform>{CenterCrop{.size = 3}, PackTokens()})->what,
              HasSubstr("pack_tokens is for documents of tokens, and these are pictures"));
}

// Ranks pad the documents of their own batches: the same documents, whatever the padding is.
TEST_F(DocumentsTest, RanksTogetherHaveTheDocumentsOfOneRank) {
  std::vector<std::uint16_t> tokens;
  for (std::uint16_t document = 0; document < 60; ++document) {
    tokens.insert(tokens.end(), document * 7 % 11 + 1, static_cast<std::uint16_t>(100 + document));
    tokens.push_back(kEnd);
  }
  const auto dataset = padded_documents(files({tokens}, 50), {.end_token = kEnd, .lengths = true});
  const auto epoch_of = [&](int ranks) {
    std::vector<std::unique_ptr<SampleLoader>> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      loaders.push_back(std::make_unique<SampleLoader>(
          dataset,
          LoaderOptions{.batch_size = 12 / ranks, .rank = rank, .world_size = ranks, .seed = 5, .workers = rank}));
      loaders.back()->start_epoch(3);
    }
    std::vector<Ids> documents;
    std::set<std::int64_t> lengths;
    for (int batch = 0; batch < 5; ++batch) {
      for (const auto& loader : loaders) {
        const auto loaded = loader->next();
        const std::int64_t length = loaded->shapes[0].front();
        lengths.insert(length);
        const auto* const features = reinterpret_cast<const std::int64_t*>(loaded->fields[0].get());
        const auto* const own = reinterpret_cast<const std::int64_t*>(loaded->fields[2].get());
        for (std::int64_t i = 0; i < loaded->samples; ++i) {
          documents.emplace_back(features + i * length, features + i * length + own[i]);
          for (std::int64_t at = own[i]; at < length; ++at) EXPECT_EQ(features[i * length + at], 0);
        }
      }
    }
    if (ranks > 1) {
      EXPECT_GT(lengths.size(), 1u);
    }
    return documents;
  };
  const std::vector<Ids> alone = epoch_of(1);
  EXPECT_EQ(std::set<Ids>(alone.begin(), alone.end()).size(), 60u);
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(epoch_of(ranks), alone) << ranks;
}

}  // namespace
}  // namespace dtrain::data
