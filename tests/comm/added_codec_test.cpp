// What adding a codec takes: a struct with its word, its settings and make_codec(), a Codec, and a place in the list.
// This one is in no list but the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compression/codec.h"
#include "document/collector.h"
#include "document/document.h"
#include "document/section.h"
#include "flat_gradients.h"
#include "harness/run_ranks.h"
#include "keys/visitors.h"

namespace dtrain {
namespace {

using comm::Codec;
using comm::CodecContext;
using comm::Exchange;
using comm::GradientBucket;
using comm::Work;
using testing::HasSubstr;

// Exchanges every `stride`-th value of each gradient, from another first one in each step; the others are zero.
struct EveryNth {
  static constexpr const char* kWord = "every_nth";
  static constexpr bool kGathers = false;
  int stride = 4;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.integer({"stride", "Of every_nth: one value in this many travels."}, stride, {1, 64});
  }
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
  bool operator==(const EveryNth&) const = default;
};

class EveryNthExchange final : public Exchange {
 public:
  EveryNthExchange(CodecContext& context, const GradientBucket& bucket, double scale, std::size_t first,
                   std::size_t stride)
      : context_(context), bucket_(bucket), scale_(scale), first_(first), stride_(stride) {}

  Work next() override {
    if (sent_) {
      spread();
      return {};
    }
    std::size_t count = 0;
    each([&](float&) { ++count; });
    sent_ = context_.memory->claim<float>(count);
    float* next = sent_;
    each([&](float& value) { *next++ = value; });
    return context_.peers.all_reduce(sent_, count, comm::DataType::kFloat32, {.post_scale = scale_});
  }
  bool only_local() const override { return sent_ != nullptr; }

 private:
  template <class Function>
  void each(const Function& function) {
    for (const std::size_t t : bucket_.tensors) {
      auto* const data = static_cast<float*>(context_.tensors[t].data);
      for (std::size_t i = first_; i < context_.tensors[t].elements; i += stride_) function(data[i]);
    }
  }
  void spread() {
    const float* next = sent_;
    for (const std::size_t t : bucket_.tensors) {
      auto* const data = static_cast<float*>(context_.tensors[t].data);
      for (std::size_t i = 0; i < context_.tensors[t].elements; ++i) {
        data[i] = i >= first_ && (i - first_) % stride_ == 0 ? *next++ : 0.0f;
      }
    }
  }

  CodecContext& context_;
  GradientBucket bucket_;
  double scale_;
  std::size_t first_, stride_;
  float* sent_ = nullptr;
};

class EveryNthCodec final : public Codec {
 public:
  EveryNthCodec(CodecContext& context, int stride) : context_(context), stride_(static_cast<std::size_t>(stride)) {}
  std::size_t staging_bytes() const override {
    std::size_t total = 0;
    for (const auto& tensor : context_.tensors) total += comm::CodecMemory::rounded(tensor.elements * sizeof(float));
    return total;
  }
  std::unique_ptr<Exchange> begin(const GradientBucket& bucket, double scale) override {
    const std::size_t first = static_cast<std::size_t>(context_.statistics.steps) % stride_;
    return std::make_unique<EveryNthExchange>(context_, bucket, scale, first, stride_);
  }

 private:
  CodecContext& context_;
  std::size_t stride_;
};

std::unique_ptr<Codec> EveryNth::make_codec(CodecContext& context) const {
  return std::make_unique<EveryNthCodec>(context, stride);
}

using WithEveryNth = std::variant<comm::Fp16, comm::TopK, EveryNth>;
constexpr config::Key kKind{.name = "kind", .text = "The method.", .required = ""};

WithEveryNth read(const std::string& text) {
  WithEveryNth codec;
  config::Collector collector("experiment.yaml");
  const auto document = config::parse_yaml(text, collector);
  collector.throw_if_any();
  config::Section section(&*document, "", document->at, collector);
  config::KeyReader::read_all(section, [&](config::Keys& keys) { keys.one_of(kKind, codec); });
  collector.throw_if_any();
  return codec;
}

std::string errors_of(const std::string& text) {
  try {
    read(text);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(AddedCodec, IsReadWithItsSettings) {
  EXPECT_EQ(read("kind: every_nth"), WithEveryNth(EveryNth{4}));
  EXPECT_EQ(read("{kind: every_nth, stride: 3}"), WithEveryNth(EveryNth{3}));
  EXPECT_EQ(read("{kind: topk, ratio: 0.5}"), WithEveryNth(comm::TopK{0.5}));
  EXPECT_THAT(errors_of("{kind: every_nth, stride: 65}"), HasSubstr("stride: "));
  EXPECT_THAT(errors_of("{kind: fp16, stride: 3}"),
              HasSubstr("stride: has no effect with kind fp16; every_nth has it"));
  EXPECT_THAT(errors_of("{kind: every_nth, ratio: 0.5}"), HasSubstr("ratio: has no effect with kind every_nth"));
}

TEST(AddedCodec, IsInThePlanAndTheSchema) {
  WithEveryNth codec = EveryNth{3};
  const auto declare = [&](config::Keys& keys) { keys.one_of(kKind, codec); };
  EXPECT_EQ(config::PlanWriter::write(declare), Json::parse(R"({"kind": "every_nth", "stride": 3})"));
  const Json schema = config::SchemaWriter::write(declare);
  EXPECT_EQ(schema.at("properties").at("kind").at("enum"), Json::parse(R"(["fp16", "topk", "every_nth"])"));
  EXPECT_TRUE(schema.at("properties").contains("stride"));
}

TEST(AddedCodec, Exchanges) {
  for (const int ranks : {1, 2, 3}) {
    test::run_communicator_ranks(test::TestWorld(ranks), "thread", [&](comm::Communicator& communicator) {
      test::Model model(communicator, {{10, 3}, {7, 1}});
      comm::CompressionOptions options;
      options.codec = comm::codec_maker(std::get<EveryNth>(read("{kind: every_nth, stride: 3}")));
      comm::GradientCompressor compressor(options, model.tensors, communicator);
      for (std::size_t step = 0; step < 4; ++step) {
        for (std::size_t t = 0; t < 2; ++t) {
          for (std::size_t i = 0; i < model.of(t).size(); ++i) {
            model.of(t)[i] = static_cast<float>((i + 1) * static_cast<std::size_t>(communicator.rank() + 1));
          }
        }
        EXPECT_EQ(compressor.compressing(), ranks > 1);
        model.exchange(compressor, 1 + step % 2);
        const float mean = static_cast<float>(ranks + 1) / 2;
        for (std::size_t t = 0; t < 2; ++t) {
          for (std::size_t i = 0; i < model.of(t).size(); ++i) {
            const bool travels = ranks == 1 || (i >= step % 3 && (i - step % 3) % 3 == 0);
            EXPECT_FLOAT_EQ(model.of(t)[i], travels ? static_cast<float>(i + 1) * mean : 0.0f) << t << " " << i;
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace dtrain
