"""What counts as external power and as a low battery, by UPower's word and by the kernel's."""

from __future__ import annotations

import pytest

from kurir.domain.power import Charge, KernelSupply, PowerFacts, Supply, of_kernel, of_upower


@pytest.mark.parametrize(
    ("on_battery", "charge", "supply"),
    [
        (False, Charge.UNKNOWN, Supply.EXTERNAL),  # a box without a battery says this too
        (False, Charge.CHARGING, Supply.EXTERNAL),
        (False, Charge.DISCHARGING, Supply.EXTERNAL),  # a charger that is too weak is still one
        (True, Charge.DISCHARGING, Supply.BATTERY),
        (True, Charge.UNKNOWN, Supply.BATTERY),
        (True, Charge.PENDING_DISCHARGE, Supply.BATTERY),
        (True, Charge.EMPTY, Supply.BATTERY),
        (True, Charge.PENDING_CHARGE, Supply.EXTERNAL),  # a charge limit
        (True, Charge.FULL, Supply.EXTERNAL),
        (True, Charge.CHARGING, Supply.EXTERNAL),
        (True, 99, Supply.BATTERY),  # a state that a later version has invented
    ],
)
def test_upower_tells_external_power_and_a_charge_limit_counts_as_such(
    on_battery: bool, charge: int, supply: Supply
) -> None:
    assert of_upower(on_battery, charge, 50.0, 1).supply is supply


@pytest.mark.parametrize(
    ("percent", "shown"), [(None, None), (15.4, 15), (15.6, 16), (0.0, 0), (100.0, 100), (-1, None)]
)
def test_a_percentage_is_shown_as_a_whole_number_if_it_is_one(percent: float | None, shown: int | None) -> None:
    assert of_upower(True, Charge.DISCHARGING, percent).percent == shown


@pytest.mark.parametrize(
    ("facts", "low"),
    [
        (of_upower(True, Charge.DISCHARGING, 15.0, 1), True),
        (of_upower(True, Charge.DISCHARGING, 16.0, 1), False),
        (of_upower(True, Charge.DISCHARGING, 40.0, 3), True),  # the warning level of the system
        (of_upower(True, Charge.DISCHARGING, 40.0, 2), False),
        (of_upower(False, Charge.CHARGING, 3.0, 4), False),
        (of_upower(True, Charge.DISCHARGING, None, 0), False),
        (PowerFacts(), False),
    ],
)
def test_a_battery_is_low_by_its_percentage_or_by_the_systems_warning(facts: PowerFacts, low: bool) -> None:
    assert facts.low(15) is low


MAINS = KernelSupply(type="Mains", online="1")
UNPLUGGED = KernelSupply(type="Mains", online="0")
USB = KernelSupply(type="USB", online="1")


def battery(status: str, capacity: str = "50", level: str = "Normal") -> KernelSupply:
    return KernelSupply(type="Battery", status=status, capacity=capacity, level=level)


@pytest.mark.parametrize(
    ("supplies", "supply", "percent"),
    [
        ([], Supply.EXTERNAL, None),
        ([MAINS], Supply.EXTERNAL, None),
        ([UNPLUGGED], Supply.EXTERNAL, None),  # it runs, so something feeds it
        ([MAINS, battery("Discharging")], Supply.EXTERNAL, 50),
        ([UNPLUGGED, battery("Discharging")], Supply.BATTERY, 50),
        ([battery("Discharging", "7")], Supply.BATTERY, 7),
        ([battery("Charging")], Supply.EXTERNAL, 50),
        ([UNPLUGGED, battery("Not charging", "80")], Supply.EXTERNAL, 80),  # a charge limit; the plug is not reported
        ([battery("Full", "100")], Supply.EXTERNAL, 100),
        ([USB, battery("Unknown")], Supply.EXTERNAL, 50),
        ([battery("Unknown")], Supply.BATTERY, 50),
        ([battery("Charging", "20"), battery("Discharging", "60")], Supply.BATTERY, 40),
        ([battery("Discharging", "")], Supply.BATTERY, None),
        ([battery("Discharging", "x")], Supply.BATTERY, None),
        ([battery("Discharging", "²")], Supply.BATTERY, None),
        ([battery("Discharging", "104")], Supply.BATTERY, 100),
    ],
)
def test_without_upower_the_kernel_tells_and_a_box_without_a_battery_always_has_external_power(
    supplies: list[KernelSupply], supply: Supply, percent: int | None
) -> None:
    facts = of_kernel(supplies)
    assert (facts.supply, facts.percent) == (supply, percent)


def test_the_kernels_word_for_a_low_battery_counts() -> None:
    assert of_kernel([battery("Discharging", "30", "Low")]).low(15)
    assert not of_kernel([battery("Discharging", "30", "Normal")]).low(15)
