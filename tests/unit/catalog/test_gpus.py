"""GPU classes: what ships, what an administrator adds, and what is refused."""

import math
import re
from datetime import date
from pathlib import Path

import pytest

from tonnage.catalog.gpu import (
    GPU_FOLDER,
    MAX_FILE_BYTES,
    CatalogError,
    Gpu,
    MissingFigureError,
    UnknownGpuError,
    boards_named,
    built_in_gpus,
    check_nodes,
    check_resources,
    find_gpu,
    read_gpu,
    read_gpus,
    sources,
)
from tonnage.units import GB, GIB

EXPECTED = [
    "B200", "H200", "H100", "H100-PCIe", "A100-80GB", "A100-40GB", "L40S", "A10G", "L4", "RTX-4090",
]  # fmt: skip
PRECISIONS = {"bf16", "fp8", "int8", "fp4"}
CUSTOM = """
name = "{name}"
memory_bytes = {memory_bytes}
nominal_memory_bytes = 100_000_000_000
memory_bytes_per_s = 5e12
interconnect = "nvlink"
interconnect_bytes_per_s = 500e9
[peak_flop_per_s]
bf16 = 1e15
"""


@pytest.fixture(params=sorted(built_in_gpus()))
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return built_in_gpus()[request.param]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_expected_classes_are_there(name: str) -> None:
    assert find_gpu(name, built_in_gpus()).name == name


def test_the_driver_reports_nearly_the_nominal_memory(gpu: Gpu) -> None:
    # A brochure's GB is a GiB for most boards, so that the driver may show up to 7 % more.
    assert 0.90 < gpu.memory_bytes / gpu.nominal_memory_bytes < 1.07


def test_peaks_are_by_known_precision_and_start_with_16_bits(gpu: Gpu) -> None:
    assert set(gpu.peak_flop_per_s) <= PRECISIONS
    assert gpu.flop_per_s("bf16") > 0


def test_each_class_can_be_selected_by_a_node_label(gpu: Gpu) -> None:
    assert gpu.product_labels
    assert all(" " not in label for label in gpu.product_labels)


def test_each_class_names_its_sources(gpu: Gpu) -> None:
    keys = {source.key for source in gpu.sources}

    assert keys & {"kv-logs", "pytorch-oom-reports"}  # the memory
    assert "k8s-device-plugin" in keys  # the label
    assert len(keys) >= 3  # and the rest


def test_each_rent_names_its_basis_and_its_source_says_the_same(gpu: Gpu) -> None:
    for rent in gpu.price.offered:
        assert rent.source is not None
        quoted = re.fullmatch(
            r"(?P<instance>[^:]+): (?P<usd>[0-9.]+) USD per "
            r"(hour, (?P<gpus>\d+) GPUs?|GPU and hour)",
            rent.source.quote,
        )
        assert quoted is not None
        assert rent.usd_per_hour == float(quoted["usd"])
        if rent.num_gpus:
            assert (rent.instance, rent.num_gpus) == (quoted["instance"], int(quoted["gpus"]))
        source = sources()[rent.source.key]
        assert rent.region in source["title"]
        publisher = {"AWS": "Amazon Web Services"}.get(rent.provider, rent.provider.split()[0])
        assert publisher in source["title"] + source["publisher"]
        said = rent.date if len(rent.date) > 7 else month_of(rent.date)  # a day, or a month
        assert said in source["where"]


def month_of(text: str) -> str:
    return date.fromisoformat(f"{text}-01").strftime("%B %Y")


def test_no_name_alias_or_label_means_two_classes() -> None:
    gpus = built_in_gpus().values()
    names = [name for gpu in gpus for name in (gpu.name, *gpu.aliases)]
    labels = [label for gpu in gpus for label in gpu.product_labels]

    assert len(set(names)) == len(names)
    assert len(set(labels)) == len(labels)


def test_memory_is_what_start_up_logs_print_in_gib() -> None:
    printed = {
        "H100": 79.18, "A100-80GB": 79.15, "A100-40GB": 39.49, "H200": 139.8, "B200": 178.35,
        "L40S": 44.39, "L4": 22.06, "A10G": 22.06, "T4": 14.56, "RTX-3090": 23.56,
        "RTX-4090": 23.53, "RTX-PRO-6000": 94.97, "V100-16GB": 15.77,
    }  # fmt: skip

    for name, gib in printed.items():
        assert built_in_gpus()[name].memory_bytes == pytest.approx(gib * GIB, abs=0.005 * GIB)


@pytest.mark.parametrize(
    ("name", "bandwidth", "precision", "peak", "link"),
    [
        ("B200", 8.0e12, "fp8", 4500e12, 900e9),
        ("H200", 4.8e12, "bf16", 989e12, 450e9),
        ("H100", 3.35e12, "bf16", 989e12, 450e9),
        ("H100", 3.35e12, "int8", 1978e12, 450e9),
        ("H100-PCIe", 2.0e12, "bf16", 756e12, 64e9),
        ("A100-80GB", 2.039e12, "int8", 624e12, 300e9),
        ("L40S", 0.864e12, "bf16", 362.05e12, 32e9),
        ("L4", 0.3e12, "fp8", 242e12, 32e9),
        ("RTX-4090", 1.008e12, "bf16", 165.2e12, 32e9),
        ("H20", 4.0e12, "fp8", 296e12, 450e9),
        ("V100-32GB", 0.9e12, "bf16", 125e12, 150e9),
        ("V100-PCIe-16GB", 0.9e12, "bf16", 112e12, 16e9),
        ("A40", 0.696e12, "int8", 299.3e12, 32e9),
        ("L40", 0.864e12, "fp8", 362e12, 32e9),
        ("RTX-6000-Ada", 0.96e12, "fp8", 728.5e12, 32e9),
    ],
)
def test_figures_are_dense_one_way_and_per_gpu(
    name: str, bandwidth: float, precision: str, peak: float, link: float
) -> None:
    gpu = built_in_gpus()[name]

    assert gpu.memory_bytes_per_s == bandwidth
    assert gpu.peak_flop_per_s[precision] == peak
    assert gpu.interconnect_bytes_per_s == link


@pytest.mark.parametrize("name", ["T4", "V100-16GB", "V100-PCIe-32GB"])
def test_the_older_classes_serve_in_float16_only(name: str) -> None:
    assert not built_in_gpus()[name].has_bf16


def test_a_spark_node_has_one_gpu() -> None:
    assert built_in_gpus()["GB10"].gpus_per_node == 1


def test_ridge_points_agree_with_the_documents() -> None:
    h100, a100 = built_in_gpus()["H100"], built_in_gpus()["A100-80GB"]

    assert h100.flop_per_s("bf16") / h100.memory_bytes_per_s == pytest.approx(295, rel=0.005)
    assert a100.flop_per_s("bf16") / 2.0e12 == pytest.approx(156, rel=0.005)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        # the driver's names, as the label nvidia.com/gpu.product has them
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX-PRO-6000"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla-V100-SXM3-32GB", "V100-32GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA-A10G", "A10G"),
        # the names of cloud providers' labels
        ("nvidia-h100-80gb", "H100"),
        ("nvidia-h200-141gb", "H200"),
        ("nvidia-tesla-t4", "T4"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("NVIDIA HGX B200", "B200"),
        ("NVIDIA Blackwell Ultra B300", "B300"),
        ("rtx-pro-server-6000", "RTX-PRO-6000"),
        # brochures
        ("NVIDIA L40S Tensor Core GPU", "L40S"),
        ("NVIDIA GH200 Grace Hopper Superchip", "GH200"),
        ("NVIDIA GB200 NVL72", "GB200"),
        ("GB300-NVL72", "GB300"),
        ("GeForce RTX 4090 24GB GDDR6X", "RTX-4090"),
        ("RTX PRO 6000 Blackwell 96GB", "RTX-PRO-6000"),
        # people
        ("h100", "H100"),
        ("H100-SXM", "H100"),
        ("h100-sxm5-80gb", "H100"),
        ("nvidia h100 pcie", "H100-PCIe"),
        ("H100 94GB", "H100-NVL"),
        ("A100 80GB PCIe", "A100-80GB-PCIe"),
        ("A100 SXM4 (40 GB)", "A100-40GB"),
        ("H200 141GB", "H200"),
        ("B200 180GB", "B200"),
        ("rtx 4090", "RTX-4090"),
        ("geforce rtx 3090 ti", "RTX-3090-Ti"),
        ("dgx spark", "GB10"),
        ("l4-24gb", "L4"),
    ],
)
def test_a_class_is_found_however_it_is_spelled(asked: str, name: str) -> None:
    assert find_gpu(asked, built_in_gpus()).name == name


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("H20-3e", "'3e' is not a word of H20 (95.0 GiB)"),  # 143,771 MiB
        ("NVIDIA-H20-3e", "'3e' is not a word of H20 (95.0 GiB)"),
        ("H20 141GB", "its size or form is not that of H20"),
        ("RTX-PRO-6000-Max-Q", "'max', 'q' are not words of RTX-PRO-6000"),  # 300 W
        (
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "'max', 'q', 'workstation' are not words of RTX-PRO-6000",
        ),
        (
            "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition",  # 1,792 GB/s, a label of its own
            "'workstation' is not a word of RTX-PRO-6000",
        ),
        ("GB200-NVL4", "'nvl4' is not a word of GB200 (184.3 GiB)"),
        ("RTX 4090 Laptop GPU", "'laptop' is not a word of RTX-4090"),
        ("NVIDIA GeForce RTX 4090 D", "'d' is not a word of RTX-4090"),
        ("RTX 5080 Super", "'super' is not a word of RTX-5080"),
        ("NVIDIA H200 NVL", "its size or form is not that of H200"),
        ("NVIDIA-GH200-120GB", "its size or form is not that of GH200"),
        ("H100 SXM5 64GB", "its size or form is not that of H100-NVL (93.0 GiB), H100-PCIe"),
        ("A100-SXM-64GB", "its size or form is not that of A100-40GB"),
        (
            "NVIDIA-A100-PCIE-40GB",
            "its size or form is not that of A100-40GB (39.5 GiB), A100-80GB",
        ),
        ("H100-NVL-80GB", "its size or form is not that of H100-NVL (93.0 GiB), H100-PCIe"),
        # more than one
        ("8x L40S", "'8x' is not a word of L40S"),
    ],
)
def test_a_name_with_a_word_that_no_class_has_is_another_board(asked: str, reason: str) -> None:
    assert boards_named(asked, built_in_gpus()) == ()
    with pytest.raises(UnknownGpuError) as refusal:
        find_gpu(asked, built_in_gpus())

    assert f"hardware.gpu {asked!r} is not in the catalogue: {reason}" in str(refusal.value)
    assert "a class file with its figures adds it (--gpus, gpuClasses" in str(refusal.value)


PARTS = [
    ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a MIG slice"),
    ("H100 MIG 3g.40gb", "a MIG slice"),
    ("Tesla-T4-SHARED", "a GPU that several pods share, by time slicing or MPS"),
    ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "a MIG slice"),
]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_of_a_gpu_is_refused_whatever_classes_there_are(name, part, tmp_path) -> None:
    """GPU feature discovery writes it behind the product of a node."""
    (tmp_path / "part.toml").write_text(CUSTOM.format(name=name, memory_bytes=10 * GB))
    why = f"{name!r} is {part}, which Tonnage does not support: it plans for whole NVIDIA GPUs"

    assert boards_named(name, built_in_gpus()) == ()
    with pytest.raises(UnknownGpuError, match=re.escape(f"hardware.gpu {why}")):
        find_gpu(name, built_in_gpus())
    with pytest.raises(CatalogError, match=re.escape(f"GPU class file part.toml: {why}")):
        read_gpus([tmp_path])


@pytest.mark.parametrize(
    ("resource", "part"),
    [
        ("nvidia.com/mig-3g.40gb", "a MIG slice"),
        ("nvidia.com/gpumem", "a share of a GPU's memory and compute"),
        ("nvidia.com/gpu.shared", "a GPU that several pods share, by time slicing or MPS"),
        ("amd.com/gpu", "made by AMD"),
        ("gpu.intel.com/xe", "made by Intel"),
        ("habana.ai/gaudi", "made by Intel"),
        ("aws.amazon.com/neuroncore", "made by AWS"),
        ("google.com/tpu", "made by Google"),
    ],
)
def test_a_container_with_what_is_no_whole_nvidia_gpu_is_refused(resource, part) -> None:
    with pytest.raises(UnknownGpuError, match=re.escape(f"asks for {resource}, {part}, which")):
        check_resources(["cpu", resource])


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "a MIG slice"),
        ("nvidia.com/mig-1g.10gb.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "a MIG slice"),
        ("nvidia.com/mig.config", "all-1g.10gb", "MIG slices"),
        ("nvidia.com/gpu.sharing-strategy", "mps", "GPUs that several pods share"),
        ("cloud.google.com/gke-gpu-partition-size", "1g.5gb", "MIG slices"),
        ("cloud.google.com/gke-gpu-sharing-strategy", "time-sharing", "GPUs that several pods"),
    ],
)
def test_nodes_with_parts_of_gpus_are_refused(key, value, part) -> None:
    with pytest.raises(UnknownGpuError, match=re.escape(part)):
        check_nodes(key, [value])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cloud.google.com/gke-nodepool", "h100-shared"),
        ("team", "mig"),
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu.sharing-strategy", "none"),
        ("nvidia.com/mig.config", "all-disabled"),
    ],
)
def test_a_word_of_a_label_of_ones_own_makes_no_part(key, value) -> None:
    check_nodes(key, [value])


def test_a_container_with_whole_gpus_is_not_refused() -> None:
    check_resources(["cpu", "memory", "nvidia.com/gpu", "rdma/hca_shared_devices_a"])


def test_a_class_of_that_name_adds_the_board(tmp_path: Path) -> None:
    (tmp_path / "h20-3e.toml").write_text(CUSTOM.format(name="H20-3e", memory_bytes=150 * GB))

    gpus = read_gpus([GPU_FOLDER, tmp_path])

    assert find_gpu("NVIDIA H20-3e", gpus).memory_bytes == 150 * GB
    assert find_gpu("NVIDIA H20", gpus).name == "H20"


@pytest.mark.parametrize(
    ("asked", "maker"),
    [
        ("MI300X", "AMD"),
        ("AMD MI355X", "AMD"),
        ("AMD_Instinct_MI300X_OAM", "AMD"),
        ("Gaudi3", "Intel"),
        ("gaudi-2", "Intel"),
        ("TPU-v5e", "Google"),
        ("tpu-v6e-slice", "Google"),
        ("Inferentia2", "AWS"),
        ("trn1.32xlarge", "AWS"),
        ("Ascend-910B", "Huawei"),
    ],
)
def test_an_accelerator_of_another_maker_is_refused_by_its_maker(asked: str, maker: str) -> None:
    with pytest.raises(UnknownGpuError) as refusal:
        find_gpu(asked, built_in_gpus())

    assert str(refusal.value) == (
        f"hardware.gpu {asked!r} is made by {maker}, which Tonnage does not support: it plans for "
        "whole NVIDIA GPUs of compute capability 7.0 or more"
    )


def test_every_name_alias_and_label_finds_its_class(gpu: Gpu) -> None:
    for name in (gpu.name, *gpu.aliases, *gpu.product_labels):
        assert find_gpu(name.lower(), built_in_gpus()) is gpu


def test_a_name_of_several_boards_is_refused_with_all_of_them() -> None:
    with pytest.raises(CatalogError, match=r"'A100' means several boards: A100-40GB \(39"):
        find_gpu("A100", built_in_gpus())


@pytest.mark.parametrize("asked", ["P100", "Tesla P100-PCIE-16GB", "RTX 6000", "A1000", "A2"])
def test_what_has_no_class_is_refused_with_what_has(asked: str) -> None:
    with pytest.raises(UnknownGpuError, match="NVIDIA GPUs of compute capability"):
        find_gpu(asked, built_in_gpus())


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("H1OO", "H100?"), ("l4Os", "L40S?"), ("A1oo", "A100-40GB, A100"), ("H10", "H100")],
)
def test_a_misspelt_class_is_refused_with_what_is_meant(asked: str, meant: str) -> None:
    with pytest.raises(UnknownGpuError, match=re.escape(f"did you mean {meant}")):
        find_gpu(asked, built_in_gpus())


def test_an_unknown_class_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        CatalogError, match=r"hardware.gpu 'H-100' .* known: A10, A100-40GB, A100-80GB"
    ):
        find_gpu("H-100", built_in_gpus())


@pytest.mark.parametrize(
    ("name", "precision", "used"),
    [
        ("A100-80GB", "fp8", "bf16"),  # no fp8 units: unpacked to 16 bits
        ("H100", "fp8", "fp8"),
        ("H100", "fp4", "bf16"),
        ("B200", "fp4", "fp4"),
        ("H100", "int4", "bf16"),
    ],
)
def test_a_precision_without_units_falls_back_to_16_bits(
    name: str, precision: str, used: str
) -> None:
    gpu = built_in_gpus()[name]

    assert gpu.flop_per_s(precision) == gpu.peak_flop_per_s[used]


def test_a_peak_that_has_no_source_is_missing_not_zero() -> None:
    with pytest.raises(MissingFigureError, match="A10G has no peak for fp64"):
        built_in_gpus()["A10G"].flop_per_s("fp64")


def test_an_administrator_adds_and_overrides_classes_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CUSTOM.format(name="X100", memory_bytes=90 * GB))
    (tmp_path / "h100.toml").write_text(CUSTOM.format(name="H100", memory_bytes=70 * GB))

    gpus = read_gpus([GPU_FOLDER, tmp_path])

    assert gpus["X100"].memory_bytes == 90 * GB
    assert gpus["H100"].memory_bytes == 70 * GB
    assert gpus["H200"] == built_in_gpus()["H200"]


@pytest.mark.parametrize("name", ["T4", "A10G", "L4", "L40S", "RTX-PRO-6000", "H100"])
def test_a_class_that_is_rented_singly_has_the_price_of_one(name: str) -> None:
    price = built_in_gpus()[name].price

    assert min(rent.num_gpus or 1 for rent in price.rents) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("memory_bytes = -1", "memory_bytes"),
        ("memory_bytes = 0", "memory_bytes"),
        ('memory_bytes = "80GB"', "memory_bytes"),
        ("memory_bytes_per_s = nan", "memory_bytes_per_s"),
        ("memory_bytes_per_s = inf", "memory_bytes_per_s"),
        ("gpus_per_node = 0", "gpus_per_node"),
        ("memory_bandwith = 1", "memory_bandwith"),
        ("peak_flop_per_s = {bf16 = -1}", "peak_flop_per_s"),
        ("price = {rent = 1}", "price"),
        ("price = {rent_usd_per_hour = -2}", "rent_usd_per_hour"),
        ("price = {whole_nodes = true}", "price.whole_nodes"),
        ('price = {missing = "secret"}', "price.missing"),
        ("price = {rent_usd_per_hour = 2, rents = [{usd_per_hour = 1}]}", "price.rents and"),
        ("name =", "my.toml"),
    ],
)
def test_a_wrong_figure_in_a_file_is_named(tmp_path: Path, change: str, named: str) -> None:
    key = change.partition(" ")[0]
    figures = CUSTOM.format(name="X", memory_bytes=1).partition("[peak_flop_per_s]")[0]
    kept = [line for line in figures.splitlines() if line.partition(" ")[0] != key]
    rest = [] if key == "peak_flop_per_s" else ["[peak_flop_per_s]", "bf16 = 1e15"]
    path = tmp_path / "my.toml"
    path.write_text("\n".join([*kept, change, *rest]))

    with pytest.raises(CatalogError, match=r"GPU class file my\.toml") as refusal:
        read_gpu(path)

    assert named in str(refusal.value)


def test_a_missing_figure_in_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('name = "X"\nmemory_bytes = 1\n')

    with pytest.raises(CatalogError, match="memory_bytes_per_s"):
        read_gpu(path)


def test_every_price_is_plausible(gpu: Gpu) -> None:
    purchase = gpu.price.purchase_usd

    assert all(0.1 < rent.usd_per_gpu_hour < 50 for rent in gpu.price.offered)
    assert purchase is None or 500 < purchase < 100_000
    assert gpu.tdp_watts is None or math.isfinite(gpu.tdp_watts)


def test_a_class_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("#" * (MAX_FILE_BYTES + 1))

    with pytest.raises(CatalogError, match=r"GPU class file my\.toml: more than 1048576 bytes"):
        read_gpu(path)
