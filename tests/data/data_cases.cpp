#include "data_cases.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "dtrain/data/data_sets.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"
#include "picture_files.h"
#include "tar_archive.h"

namespace dtrain::data {

namespace {

constexpr std::int64_t kSamples = 211;
constexpr std::int64_t kWidth = 3;

// Value j of sample i.
int value(std::int64_t i, std::int64_t j) {
  return static_cast<int>(i * 7 + j * 1'000);
}

class Files {
 public:
  explicit Files(const std::filesystem::path& folder) : folder_(folder) {}

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  template <typename Number>
  static std::string numbers(std::int64_t first, std::int64_t count, std::int64_t width) {
    std::string bytes;
    for (std::int64_t i = first; i < first + count; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const auto number = static_cast<Number>(value(i, j));
        bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
      }
    }
    return bytes;
  }
  static std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
    std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
    header += '\n';
    std::string file("\x93NUMPY\x01\x00", 8);
    file += static_cast<char>(header.size() & 255);
    file += static_cast<char>(header.size() >> 8);
    return file + header + data;
  }
  static std::string idx(const std::vector<int>& dimensions, const std::string& data) {
    std::string file("\0\0\x08", 3);
    file += static_cast<char>(dimensions.size());
    for (const int dimension : dimensions) {
      for (const int shift : {24, 16, 8, 0}) file += static_cast<char>(dimension >> shift & 255);
    }
    return file + data;
  }

 private:
  const std::filesystem::path folder_;
};

// Records whose lengths differ, with a value that random numbers change.
class Records final : public SampleSource {
 public:
  std::int64_t size() const override { return kSamples; }
  const std::vector<std::string>& names() const override { return names_; }
  Sample read(const Pass&, std::int64_t index) const override {
    Sample sample{index, {}};
    Value values = Value::make(ElementType::kInt32, {1 + index % 5});
    for (std::int64_t j = 0; j < values.elements(); ++j) {
      const std::int32_t number = value(index, j);
      std::memcpy(values.data.get() + j * 4, &number, 4);
    }
    sample.values.push_back(std::move(values));
    sample.values.push_back(Value::scalar(index));
    return sample;
  }

 private:
  const std::vector<std::string> names_{"record", "index"};
};

// The first value of each record and a random number: of one shape.
void augment(Sample& sample, RandomStream& random) {
  Value changed = Value::make(ElementType::kInt32, {2});
  std::memcpy(changed.data.get(), sample.values[0].data.get(), 4);
  const auto drawn = static_cast<std::int32_t>(random.below(1'000'000));
  std::memcpy(changed.data.get() + 4, &drawn, 4);
  sample.values[0] = std::move(changed);
}

void negate(HostBatch& batch, RandomStream&, const BatchAllocator& allocate) {
  auto memory = allocate(static_cast<std::size_t>(batch.samples) * 8);
  for (std::int64_t i = 0; i < batch.samples * 2; ++i) {
    std::int32_t number = 0;
    std::memcpy(&number, batch.fields[0].get() + i * 4, 4);
    number = -number;
    std::memcpy(memory.get() + i * 4, &number, 4);
  }
  batch.fields[0] = std::move(memory);
}

// Of another size and with other colours than all others, and no two columns alike.
std::string picture_file(std::int64_t i) {
  Image picture({4 + static_cast<int>(i % 5), 4 + static_cast<int>(i / 20)});
  for (int y = 0; y < picture.height(); ++y) {
    for (int x = 0; x < picture.width(); ++x) {
      std::uint8_t* const pixel = picture.row(y) + x * Image::kBytes;
      pixel[0] = static_cast<std::uint8_t>(i + 1);
      pixel[1] = static_cast<std::uint8_t>(x * 20);
      pixel[2] = static_cast<std::uint8_t>(y * 10);
      pixel[3] = 0;
    }
  }
  return png_of(picture);
}

}  // namespace

std::vector<DataCase> data_cases(const std::filesystem::path& folder) {
  const Files files(folder);
  std::vector<DataCase> cases;
  const std::vector<Transform> of_pictures{RandomCrop{.size = 4, .padding = 2}, HorizontalFlip()};
  const auto open = [&](const std::string& name, const Format& format, const Source& source,
                        const std::vector<Transform>& transforms = {}) {
    cases.push_back({name, open_source(format, source, transforms, no_sharing())});
  };
  const std::string features = Files::numbers<float>(0, kSamples, kWidth);
  const std::string target = Files::numbers<std::int64_t>(0, kSamples, 1);

  std::string pixels, labels;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    labels += static_cast<char>(i);
    for (const std::int64_t pixel : {i, 255 - i, i / 2, i % 7}) pixels += static_cast<char>(pixel);
  }
  open("idx", Idx(),
       {{"features", files.write("x.idx", Files::idx({kSamples, 2, 2}, pixels))},
        {"target", files.write("y.idx", Files::idx({kSamples}, labels))}});

  const Source npy{{"features", files.write("x.npy", Files::npy("<f4", "211, 3", features))},
                   {"target", files.write("y.npy", Files::npy("<i8", "211,", target))}};
  open("npy", Npy(), npy);
  open("npy in place", Npy{.in_memory = InMemory::kNever}, npy);
  for (const std::int64_t first : {0, 100}) {
    const std::int64_t count = first == 0 ? 100 : kSamples - 100;
    const std::string number = std::to_string(first / 100) + ".npy";
    files.write("x-" + number,
                Files::npy("<f4", std::to_string(count) + ", 3", Files::numbers<float>(first, count, kWidth)));
    files.write("y-" + number,
                Files::npy("<i8", std::to_string(count) + ",", Files::numbers<std::int64_t>(first, count, 1)));
  }
  const Source several{{"features", files.path("x-*.npy")}, {"target", files.path("y-*.npy")}};
  open("npy of several files", Npy(), several);
  open("npy of several files in place", Npy{.in_memory = InMemory::kNever}, several);

  std::string header = R"({"features":{"dtype":"F32","shape":[211,3],"data_offsets":[0,2532]},)"
                       R"("target":{"dtype":"I64","shape":[211],"data_offsets":[2532,4220]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  const std::string safetensors = std::string(reinterpret_cast<const char*>(&length), 8) + header + features + target;
  const Source tensors{
      {"file", files.write("all.safetensors", safetensors)}, {"features", "features"}, {"target", "target"}};
  open("safetensors", Safetensors(), tensors);
  open("safetensors in place", Safetensors{.in_memory = InMemory::kNever}, tensors);

  open("tokens", Tokens{.token_type = TokenType::kInt32, .sequence_length = 3},
       {{"file", files.write("tokens.bin", Files::numbers<std::int32_t>(0, kSamples * 3 + 1, 1))}});
  // Two documents in each row of up to 8 tokens: 3 + 4, 3 + 5 or 2 + 5 of them. Beside each other: one document in
  // each.
  std::string pairs[2], alone[2];
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const auto add = [&](std::string& bytes, std::int64_t tokens) {
      bytes += Files::numbers<std::int32_t>(i + 1, 1, tokens - 1) + std::string(4, '\0');
    };
    add(pairs[i / 100 % 2], i % 3 == 2 ? 2 : 3);
    add(pairs[i / 100 % 2], i % 3 == 0 ? 4 : 5);
    add(alone[i / 100 % 2], 2 + i % 7);
  }
  for (const int part : {0, 1}) {
    files.write("pairs-" + std::to_string(part) + ".bin", pairs[part]);
    files.write("alone-" + std::to_string(part) + ".bin", alone[part]);
  }
  const Tokens documents{.token_type = TokenType::kInt32, .sequence_length = 7};
  open("packed documents", documents, {{"file", files.path("pairs-*.bin")}},
       {PackTokens{.end_token = 0, .positions = true, .documents = true}});
  // Of one length in all batches, so that a sample's bytes do not depend on the others of its batch.
  open("padded documents", documents, {{"file", files.path("alone-*.bin")}},
       {PadToLongest{.end_token = 0, .multiple_of = 7, .mask = true, .lengths = true}});
  open("raw",
       Raw{.features_type = ElementType::kFloat32, .target_type = ElementType::kInt64, .features_shape = {kWidth}},
       {{"features", files.write("x.raw", features)}, {"target", files.write("y.raw", target)}});

  std::string table = "a,b,c,label\n";
  for (std::int64_t i = 0; i < kSamples; ++i) {
    for (std::int64_t j = 0; j < kWidth; ++j) table += std::to_string(value(i, j)) + ".5,";
    table += std::to_string(i) + "\n";
  }
  open("csv", Csv(), {{"file", files.write("table.csv", table)}});

  for (const char* const part : {"pictures/b", "pictures/a", "shards"}) {
    std::filesystem::create_directories(files.path(part));
  }
  for (std::int64_t i = 0, shard = 0; i < kSamples; ++shard) {  // of 1, 22, 43, … samples
    TarWriter writer(files.path("shards/" + std::to_string(shard) + ".tar"));
    for (const std::int64_t end = std::min(kSamples, i + 1 + shard * 21); i < end; ++i) {
      const std::string picture = picture_file(i);
      files.write((i % 3 == 0 ? "pictures/a/" : "pictures/b/") + std::to_string(i) + ".png", picture);
      writer.add(std::to_string(i) + ".png", picture);
      writer.add(std::to_string(i) + ".cls", std::to_string(i));
    }
    writer.close();
  }
  open("image_folder", ImageFolder(), {{"folder", files.path("pictures")}}, of_pictures);
  open("shards", Shards(), {{"files", files.path("shards/*.tar")}}, of_pictures);

  cases.push_back({"synthetic", make_synthetic({.samples = kSamples, .features = 3})});

  const auto records = std::make_shared<Records>();
  const std::vector<Field> of_one_shape{{"record", ElementType::kInt32, {2}}, {"index", ElementType::kInt64, {}}};
  const auto augmented = map(map(records, augment), [](Sample& sample, RandomStream& random) {
    std::int32_t number = 0;
    std::memcpy(&number, sample.values[0].data.get() + 4, 4);
    number ^= static_cast<std::int32_t>(random.below(1 << 20)) << 8;
    std::memcpy(sample.values[0].data.get() + 4, &number, 4);
  });
  cases.push_back({"samples with random transforms", stack(augmented, of_one_shape)});
  cases.push_back({"samples that are written into the batch",
                   map_into(records, of_one_shape,
                            [](const Sample& sample, RandomStream& random, std::span<std::byte* const> outputs) {
                              Sample copy = sample;
                              augment(copy, random);
                              std::memcpy(outputs[0], copy.values[0].data.get(), 8);
                              std::memcpy(outputs[1], copy.values[1].data.get(), 8);
                            })});
  cases.push_back({"batches that are changed", batch_map(stack(augmented, of_one_shape), negate, of_one_shape)});
  const std::vector<Field> open_ended{{"record", ElementType::kInt32, {Field::kAnyExtent}},
                                      {"index", ElementType::kInt64, {}}};
  cases.push_back({"padded samples", collate(records, open_ended, pad_to_longest(open_ended, -1))});

  cases.push_back({"blocks", std::make_shared<InBlocks>(cases[1].dataset,
                                                        std::vector<std::int64_t>{30, 0, 1, 64, 5, 5, 5, 1, 60, 40})});
  cases.push_back({"blocks of samples with random transforms",
                   std::make_shared<InBlocks>(stack(augmented, of_one_shape), std::vector<std::int64_t>(211, 1))});
  return cases;
}

}  // namespace dtrain::data
