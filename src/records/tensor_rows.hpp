// SPDX-License-Identifier: Apache-2.0
// Rows about single tensors (log.histograms, log.rms), in the forms of metric_rows.hpp.
//
//   metrics.jsonl
//       {"kind":"histogram","of":"gradients","tensor":"decoder/...","step":100,"count":..,
//        "nonfinite":0,"min":..,"max":..,"mean":..,"rms":..,"b-12":3,"b-11":7,...}
//                            bN: values in bucket N (value_counts.hpp); empty ones are left out
//       {"kind":"rms","of":"gradients","step":100,"decoder/...":0.01,...}
//   metrics.h5
//       /histograms/KIND/TENSOR/{step,count,nonfinite,min,max,mean,rms}  a value per row
//       /histograms/KIND/TENSOR/{bucket,low,high}    number and limits of each bucket with values
//       /histograms/KIND/TENSOR/counts               [rows, buckets]
//       /rms/KIND/{step,TENSOR,...}
#pragma once

#include <string>
#include <vector>

#include "io/h5.hpp"
#include "records/metric_rows.hpp"
#include "records/value_counts.hpp"

namespace records {

// The groups of rows. `kind`: "weights", "gradients", "updates" or "activations".
std::string histogram_rows(const std::string& kind, const std::string& tensor);
std::string rms_rows(const std::string& kind);
bool is_histogram(const std::string& group);
bool is_rms(const std::string& group);
// Returns "gradients/TENSOR" for a group of histograms, "gradients" for a group of rms.
std::string tensor_name(const std::string& group);

MetricValues histogram_values(const ValueCounts& counts);
struct Bucket {
  int number;
  double count;
};
// Returns the buckets in a row of a histogram, in ascending order.
std::vector<Bucket> buckets_of(const MetricValues& values);

// Writes a group of histograms to metrics.h5.
void write_histogram(io::H5File& file, const std::string& group, const MetricSeries& series);
// True for datasets without one value per row. read_buckets reads all such datasets of a group.
bool is_of_buckets(const std::string& group, const std::string& dataset);
void read_buckets(const io::H5File& file, const std::string& group, MetricSeries& series);

}  // namespace records
