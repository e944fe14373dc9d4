// Stands in front of CUDA's header: kernels use its conversions in code for the GPU only.
#pragma once
