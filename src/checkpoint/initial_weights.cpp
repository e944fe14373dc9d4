// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/initial_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "checkpoint/foreign_vit.hpp"
#include "checkpoint/name_map.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/weight_file.hpp"
#include "comm/together.hpp"

namespace checkpoint {
namespace {

using Json = nlohmann::json;

// elements per broadcast: 4 MiB of f32, whole checksum blocks
constexpr int64_t kPiece = int64_t{1} << 20;

// Copies `count` f32 values into this rank's parts. values[0] is element `begin` of the tensor.
void copy_into(const State& state, const shard::TensorSlice& tensor, int64_t begin,
               const char* values, int64_t count) {
  for (const auto& part : tensor.parts) {
    int64_t from = std::max(begin, part.begin), to = std::min(begin + count, part.end);
    if (from >= to) continue;
    const device::View target{static_cast<float*>(part.data) + (from - part.begin),
                              device::DType::f32, to - from};
    const char* source = values + 4 * (from - begin);
    if (state.on_host())
      std::memcpy(target.data, source, size_t(target.bytes()));
    else
      device::upload(target, source, *state.queue);
  }
}

// The open file and the plan of what to load from it. Only rank 0 fills them.
struct Reader {
  std::unique_ptr<WeightFile> file;
  InitPlan plan;

  std::string piece(const InitPlan::Load& load, const Wanted& wanted, int64_t begin,
                    int64_t count) {
    if (begin == 0) file->begin(load.source);
    std::string out(size_t(4 * count), '\0');
    float* values = reinterpret_cast<float*>(out.data());
    if (load.whole()) {
      const std::vector<float> table = load.resample ? resampled(load, wanted) : transposed(load);
      std::memcpy(values, table.data(), out.size());
    } else {
      file->read(values, count);
    }
    for (int64_t i = 0; i < count; ++i)
      if (!std::isfinite(values[i]))
        base::fail(base::Exit::checkpoint, "{}: {} holds {} at element {}", file->path(),
                   describe(file->tensors()[load.source]), values[i], begin + i);
    return out;
  }

  // Returns the columns of a matrix, one after the other.
  std::vector<float> transposed(const InitPlan::Load& load) {
    const FileTensor& t = file->tensors()[load.source];
    const size_t rows = size_t(t.shape[0]), columns = size_t(t.shape[1]);
    std::vector<float> matrix(rows * columns), out(rows * columns);
    file->read(matrix.data(), int64_t(matrix.size()));
    for (size_t r = 0; r < rows; ++r)
      for (size_t c = 0; c < columns; ++c) out[c * rows + r] = matrix[r * columns + c];
    return out;
  }

  std::vector<float> resampled(const InitPlan::Load& load, const Wanted& wanted) {
    const FileTensor& t = file->tensors()[load.source];
    int64_t rows = t.shape[1], width = t.shape[2], side = grid_side(rows);
    std::vector<float> table(size_t(rows * width));
    file->read(table.data(), int64_t(table.size()));
    if (side < 0) {  // the first row belongs to the class token
      side = grid_side(rows - 1);
      table.erase(table.begin(), table.begin() + width);
    }
    return resample_grid(table, side, grid_side(wanted.shape[1]), width);
  }
};

std::vector<std::string> report_lines(const InitPlan& plan, const std::vector<Wanted>& wanted,
                                      const WeightFile& file) {
  std::vector<std::string> lines;
  for (const InitPlan::Load& l : plan.loads)
    lines.push_back(fmt::format("{:<10}{} [{}] from {}", l.resample ? "resampled" : "loaded",
                                wanted[l.wanted].path, fmt::join(wanted[l.wanted].shape, ", "),
                                describe(file.tensors()[l.source])));
  auto add = [&lines](const char* what, const std::vector<std::string>& all) {
    for (const std::string& text : all) lines.push_back(fmt::format("{:<10}{}", what, text));
  };
  add("skipped", plan.skipped);
  add("missing", plan.missing);
  add("unmapped", plan.unmapped);
  add("unused", plan.unused);
  return lines;
}

std::string summary_of(const InitPlan& plan, const std::vector<Wanted>& wanted) {
  int64_t values = 0, resampled = 0;
  for (const InitPlan::Load& l : plan.loads) {
    values += *checked_count(wanted[l.wanted].shape);
    resampled += l.resample;
  }
  return fmt::format(
      "loaded {} of {} tensors = {} values ({} resampled); skipped {}, missing {}, unmapped {}; "
      "unused in the file {}",
      plan.loads.size(), wanted.size(), base::with_commas(values), resampled, plan.skipped.size(),
      plan.missing.size(), plan.unmapped.size(), plan.unused.size());
}

// Returns what was recognised, if the names are another program's.
std::string names_of(const WeightFile& file) {
  if (file.family().empty()) return "";
  const std::string& prefix = file.prefix();
  return fmt::format("; names of {}{}", file.family(),
                     prefix.empty() ? "" : fmt::format(" below {}", prefix));
}

}  // namespace

InitReport load_initial_weights(comm::Comm& comm, const InitOptions& options, const State& target,
                                const models::TrunkWeights& trunk, const comm::Poll& poll,
                                Use use) {
  base::Stopwatch watch;
  const std::vector<std::string>& grids = trunk.patch_tables;
  std::vector<Wanted> wanted;
  std::vector<const shard::TensorSlice*> into;
  for (const shard::TensorSlice& t : target.tensors) {
    if (!t.name.starts_with(kWeightRoot)) continue;
    CHECK(t.type == device::DType::f32, "{} is not f32", t.name);
    std::string path = t.name.substr(kWeightRoot.size());
    wanted.push_back({path, t.shape, std::find(grids.begin(), grids.end(), path) != grids.end()});
    into.push_back(&t);
  }

  Reader reader;
  Json plan = Json::from_cbor(comm::on_first(comm, [&] {
    InitOptions chosen = options;
    reader.file = open_weights(options.from);
    if (chosen.map.empty() && options.family != kOwnNames) {
      if (trunk.texts)
        reader.file = translated_part(std::move(reader.file), *trunk.texts, text_families());
      if (trunk.decoder)
        reader.file = translated_part(std::move(reader.file), *trunk.decoder, decoder_families());
    }
    if (trunk.vit)
      reader.file = translated_vit(std::move(reader.file), *trunk.vit, chosen.map, options.family);
    reader.plan = plan_init(wanted, *reader.file, chosen, trunk, use);
    Json loads = Json::array(), whole = Json::array();
    for (const InitPlan::Load& l : reader.plan.loads) {
      loads.push_back(l.wanted);
      whole.push_back(l.whole());
    }
    const WeightConfig beside =
        reader.file->family().empty() ? WeightConfig() : read_weight_config(options.from);
    std::string bytes;
    Json::to_cbor({{"files", beside.files},
                   {"mean", beside.mean},
                   {"deviation", beside.deviation},
                   {"loads", loads},
                   {"whole", whole},
                   {"summary", summary_of(reader.plan, wanted) + names_of(*reader.file)},
                   {"lines", report_lines(reader.plan, wanted, *reader.file)}},
                  bytes);
    return bytes;
  }));
  for (size_t l = 0; l < plan.at("loads").size(); ++l) {
    size_t w = plan["loads"][l].get<size_t>();
    int64_t count = checked_count(wanted[w].shape).value();
    for (int64_t begin = 0, n; begin < count; begin += n) {
      // A tensor that is computed as a whole is sent in one piece.
      poll();
      n = plan["whole"][l].get<bool>() ? count : std::min(kPiece, count - begin);
      std::string values = comm::on_first(
          comm, [&] { return reader.piece(reader.plan.loads[l], wanted[w], begin, n); });
      copy_into(target, *into[w], begin, values.data(), n);
    }
  }
  WeightConfig beside;
  beside.files = plan["files"].get<std::vector<std::string>>();
  beside.mean = plan["mean"].get<std::vector<double>>();
  beside.deviation = plan["deviation"].get<std::vector<double>>();
  return {plan["summary"].get<std::string>(), plan["lines"].get<std::vector<std::string>>(),
          watch.seconds(), beside};
}

}  // namespace checkpoint
