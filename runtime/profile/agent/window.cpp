#include "agent/window.h"

namespace dtrain::profile {
namespace {

void append_sketch(LineBuffer& out, const Sketch& sketch) {
  put(out, FMT_COMPILE("{{\"count\":{},\"sum\":{},\"min\":{},\"max\":{},\"zeros\":{},\"bins\":["), sketch.count(),
      sketch.sum(), sketch.min(), sketch.max(), sketch.zeros());
  const char* separator = "";
  for (const Sketch::Bin& bin : sketch.bins()) {
    put(out, FMT_COMPILE("{}{},{}"), separator, bin.index, bin.count);
    separator = ",";
  }
  put(out, FMT_COMPILE("]}}"));
}

}  // namespace

void DumpWindow::add(const Record& record) {
  if (record.kind == RecordKind::kStep) add_step(record.step);
  if (record.kind == RecordKind::kCollective) add_collective(record.collective);
  if (record.kind != RecordKind::kLoader) return;
  loader_.workers = record.loader.workers;
  loader_.pinned = record.loader.pinned != 0;
  loader_.queue_depth.add(record.loader.queue_depth);
  if (record.loader.fetch_ns >= 0) loader_.fetch_ns.add(record.loader.fetch_ns);
}

void DumpWindow::add_step(const StepPayload& step) {
  exchanged_ += step.exchanged != 0 ? 1 : 0;
  samples_ += step.samples;
  wall_ns_.add(step.wall_ns);
  const double difference = static_cast<double>(step.wall_ns) - mean_ns_;
  mean_ns_ += difference / static_cast<double>(wall_ns_.count());
  m2_ += difference * (static_cast<double>(step.wall_ns) - mean_ns_);
  for (std::size_t i = 0; i < kPhaseCount; ++i) phases_[i].add(time_in(step.phases, static_cast<Phase>(i)));
}

void DumpWindow::add_collective(const CollectiveRecord& c) {
  CollectiveSums& sums = collectives_[{operation_of(c), c.bucket, c.world_size}];
  if (sums.duration_ns.count() == 0) sums.first_sequence = c.sequence;
  sums.last_sequence = c.sequence;
  sums.bytes += static_cast<std::int64_t>(c.bytes);
  sums.duration_ns.add(c.ended_ns - c.started_ns);
  sums.exposed_ns.add(c.exposed_ns);
  sums.queued_ns.add(c.started_ns - c.enqueued_ns);
}

void DumpWindow::append_line(LineBuffer& out, const Frame& frame) const {
  put(out,
      FMT_COMPILE("{{\"record\":\"window\",\"first_batch\":{},\"last_batch\":{},\"epoch\":{},\"start_ns\":{},"
                  "\"end_ns\":{},\"steps\":{},\"outliers\":{},\"outliers_folded\":{},\"exchanged\":{},\"samples\":{},"
                  "\"wall_ns\":"),
      frame.first_batch, frame.last_batch, frame.epoch, frame.start_ns, frame.end_ns, wall_ns_.count(), frame.outliers,
      frame.outliers_folded, exchanged_, samples_);
  append_sketch(out, wall_ns_);
  put(out, FMT_COMPILE(",\"wall_ns_m2\":{:.9g},\"phases\":{{"), m2_);
  const char* separator = "";
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    put(out, FMT_COMPILE("{}\"{}\":"), separator, name_of(static_cast<Phase>(i)));
    append_sketch(out, phases_[i]);
    separator = ",";
  }
  put(out, FMT_COMPILE("}},\"collectives\":["));
  separator = "";
  for (const auto& [key, sums] : collectives_) {
    put(out,
        FMT_COMPILE("{}{{\"operation\":\"{}\",\"bucket\":{},\"world_size\":{},\"count\":{},\"bytes\":{},"
                    "\"first_sequence\":{},\"last_sequence\":{},\"duration_ns\":"),
        separator, key.operation, key.bucket, key.world_size, sums.duration_ns.count(), sums.bytes, sums.first_sequence,
        sums.last_sequence);
    append_sketch(out, sums.duration_ns);
    put(out, FMT_COMPILE(",\"exposed_ns\":"));
    append_sketch(out, sums.exposed_ns);
    put(out, FMT_COMPILE(",\"queued_ns\":"));
    append_sketch(out, sums.queued_ns);
    put(out, FMT_COMPILE("}}"));
    separator = ",";
  }
  put(out, FMT_COMPILE("],\"loader\":{{\"count\":{},\"workers\":{},\"pinned\":{},\"queue_depth\":"),
      loader_.queue_depth.count(), loader_.workers, loader_.pinned ? "true" : "false");
  append_sketch(out, loader_.queue_depth);
  put(out, FMT_COMPILE(",\"fetch_ns\":"));
  append_sketch(out, loader_.fetch_ns);
  put(out, FMT_COMPILE("}}}}\n"));
}

}  // namespace dtrain::profile
