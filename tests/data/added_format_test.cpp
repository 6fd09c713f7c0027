// What adding a format of data takes: a struct with its word, the keys of its sources, its settings and open(), and a
// place in the list. This one is in no list but the test's.
#include <charconv>

#include <gmock/gmock.h>

#include "data_file.h"
#include "document/document.h"
#include "dtrain/base/text.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "experiment/model_data.h"
#include "file_test.h"
#include "keys/visitors.h"

namespace dtrain::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Lines of numbers with commas between them; the last number of a line is the target.
struct TestRows {
  static constexpr const char* kWord = "rows";
  static constexpr const char* kText = "one file, a line for each sample.";
  static constexpr std::array kSource{SourceKey{.name = "file", .text = kTheFile, .must_be = "the path of a .csv file"},
                                      SourceKey{.name = "encoding",
                                                .text = "how letters are written.",
                                                .must_be = "a name",
                                                .is_file = false,
                                                .fallback = "utf-8"}};
  static constexpr bool kImages = false;
  static constexpr bool kSequences = false;

  int header_lines = 1;
  std::optional<double> scale;

  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.integer({"header_lines", "Of rows: lines before the first sample."}, header_lines, {0, 100});
    declare_scale(keys, scale);
  }
  std::shared_ptr<Dataset> open(const Source& source, const HostShare& share) const;
  bool operator==(const TestRows&) const = default;
};

std::vector<float> numbers_of(const DataFile& file, const std::string& line) {
  std::vector<float> numbers;
  for (const std::string& text : split(line, ',')) {
    float number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) file.fail(0, "'" + text + "' is not a number");
    numbers.push_back(number);
  }
  return numbers;
}

SharedMemory load_rows(const std::filesystem::path& path, std::size_t header_lines) {
  const DataFile file(path);
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  std::vector<float> features, targets;
  std::size_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    if (number++ < header_lines || line.empty()) continue;
    const std::vector<float> numbers = numbers_of(file, line);
    features.insert(features.end(), numbers.begin(), numbers.end() - 1);
    targets.push_back(numbers.back());
  }
  const auto samples = static_cast<std::int64_t>(targets.size());
  const auto width = static_cast<std::int64_t>(features.size()) / samples;
  auto dataset = InMemoryDataset::allocate(
      "rows", samples, {{"features", ElementType::kFloat32, {width}}, {"target", ElementType::kFloat32, {}}});
  std::memcpy(dataset.column(0).data(), features.data(), features.size() * sizeof(float));
  std::memcpy(dataset.column(1).data(), targets.data(), targets.size() * sizeof(float));
  return std::move(dataset).release();
}

std::shared_ptr<Dataset> TestRows::open(const Source& source, const HostShare& share) const {
  const std::string& file = source.at("file");
  return std::make_shared<InMemoryDataset>(
      share("rows:" + file, [&] { return load_rows(file, static_cast<std::size_t>(header_lines)); }));
}

using List = std::variant<Idx, Npy, Safetensors, Tokens, Raw, Csv, ImageFolder, Shards, TestRows>;
using Data = config::DataOf<List>;

class AddedFormatTest : public FileTest {
 protected:
  // The section `data` of an experiment file in the test's folder.
  Data read(const std::string& text) const {
    config::Collector collector((folder_ / "experiment.yaml").string());
    const auto document = config::parse_yaml(text, collector);
    collector.throw_if_any();
    const config::Section section(&*document, "", document->at, collector);
    const Data data = config::read_model_data<List>(section);
    collector.throw_if_any();
    return data;
  }
  std::string errors_of(const std::string& text) const {
    try {
      read(text);
    } catch (const config::ConfigErrors& errors) {
      return errors.what();
    }
    return "";
  }
};

TEST_F(AddedFormatTest, IsReadWithItsSettings) {
  const Data rows =
      read("{format: rows, training: {file: a.csv}, validation: {file: /b.csv, encoding: ascii}, scale: 2}");
  EXPECT_EQ(rows.format, List(TestRows{.scale = 2.0}));
  EXPECT_EQ(rows.training, (Source{{"file", (folder_ / "a.csv").string()}, {"encoding", "utf-8"}}));
  EXPECT_EQ(rows.validation, (Source{{"file", "/b.csv"}, {"encoding", "ascii"}}));
  EXPECT_EQ(read("{format: rows, training: {file: a}, header_lines: 7}").format, List(TestRows{.header_lines = 7}));
  EXPECT_EQ(read("{format: tokens, training: {file: a}, sequence_length: 3}").format,
            List(Tokens{.sequence_length = 3}));
}

TEST_F(AddedFormatTest, ItsErrorsAreThoseOfEveryFormat) {
  EXPECT_THAT(
      errors_of("{format: rowz, training: {file: a}}"),
      HasSubstr("format: must be idx, npy, safetensors, tokens, raw, csv, image_folder, shards or rows, not 'rowz'; "
                "did you mean 'rows'?"));
  EXPECT_THAT(errors_of("{format: rows, training: {}}"),
              HasSubstr("training.file: required key is missing: the path of a .csv file"));
  EXPECT_THAT(errors_of("{format: rows, training: {file: a, target: b}}"),
              HasSubstr("training.target: has no effect with format rows; its keys are file and encoding"));
  EXPECT_THAT(errors_of("{format: idx, training: {features: a, target: b, encoding: c}}"),
              HasSubstr("training.encoding: has no effect with format idx; its keys are features and target"));
  EXPECT_THAT(errors_of("{format: npy, training: {features: a, target: b}, header_lines: 1}"),
              HasSubstr("header_lines: has no effect with format npy; rows has it"));
  EXPECT_THAT(errors_of("{format: rows, training: {file: a}, sequence_length: 1}"),
              HasSubstr("sequence_length: has no effect with format rows; tokens has it"));
  EXPECT_THAT(errors_of("{format: rows, training: {file: a}, header_lines: 101}"), HasSubstr("from 0 to 100"));
}

TEST_F(AddedFormatTest, IsInThePlanAndTheSchema) {
  Data rows{TestRows{.header_lines = 2}, {{"file", "/a.csv"}, {"encoding", "utf-8"}}, {}};
  EXPECT_EQ(to_line(config::PlanWriter::write([&](config::Keys& keys) { declare_keys(keys, rows); })),
            R"({"format":"rows","training":{"file":"/a.csv","encoding":"utf-8"},"validation":null,"scale":null,)"
            R"("header_lines":2,"workers":"auto","prefetch":2,"pin":true,"shuffle":true,"drop_last":true,)"
            R"("shuffle_window":512,"on_error":"fail"})");

  Data defaults;
  const Json schema = config::SchemaWriter::write([&](config::Keys& keys) { declare_keys(keys, defaults); });
  const Json& keys = schema.at("properties");
  EXPECT_THAT(keys.at("format").at("enum").get<std::vector<std::string>>(),
              ElementsAre("idx", "npy", "safetensors", "tokens", "raw", "csv", "image_folder", "shards", "rows"));
  EXPECT_THAT(keys.at("format").at("description").get<std::string>(),
              ::testing::EndsWith(" rows: one file, a line for each sample."));
  EXPECT_TRUE(keys.contains("header_lines"));
  EXPECT_EQ(keys.at("training").at("properties").at("file").at("description").get<std::string>(),
            std::string("safetensors, tokens, csv, rows: ") + kTheFile);
  EXPECT_THAT(
      to_line(schema.at("allOf")),
      HasSubstr(
          R"({"if":{"required":["format"],"properties":{"format":{"const":"rows"}}},"then":{"properties":)"
          R"({"training":{"properties":{"features":false,"target":false,"folder":false,"files":false,"transforms":false},"required":["file"]},)"));
}

TEST_F(AddedFormatTest, ItsSamplesAreRead) {
  write("a.csv", "x,y,value\n1,2,3\n4,5,6.5\n");
  const Data rows = read("{format: rows, training: {file: a.csv}}");
  const auto dataset = open_source(rows.format, rows.training, {}, no_sharing());
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_THAT(read_field<float>(*dataset, 0, {1, 0}), ElementsAre(4, 5, 1, 2));
  EXPECT_THAT(read_field<float>(*dataset, 1, {0, 1}), ElementsAre(3, 6.5));
  const Data without_header = read("{format: rows, training: {file: a.csv}, header_lines: 0}");
  EXPECT_THAT(failure([&] { std::get<TestRows>(without_header.format).open(without_header.training, no_sharing()); }),
              HasSubstr("'x' is not a number"));
}

}  // namespace
}  // namespace dtrain::data
