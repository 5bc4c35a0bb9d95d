"""A mock of ModemManager, as far as kurird looks at it: one modem, whose registration a test sets.

Runs with the system's Python, on the bus of DBUS_SYSTEM_BUS_ADDRESS, because Debian 12's python-dbusmock has no
template of it. It has ModemManager's names, paths, interfaces and types (GetManagedObjects, InterfacesAdded and
InterfacesRemoved, PropertiesChanged), and nothing of its behaviour beyond that. `say` is how a test drives it:

    say(address, "Register", 5)
"""

from __future__ import annotations

import subprocess
import sys

NAME = "org.freedesktop.ModemManager1"
ROOT = "/org/freedesktop/ModemManager1"
TEST = "test.kurir.Modem"


def say(address: str, method: str, *arguments: int) -> None:
    """Let the mock do it: Register STATE, Signal QUALITY, Plug, Unplug; returns when it has."""
    command = ["dbus-send", f"--bus={address}", f"--dest={NAME}", "--print-reply", ROOT, f"{TEST}.{method}"]
    command += [f"uint32:{one}" for one in arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=10)


def main(interface: str, registration: int) -> None:
    """Serve until the end, with a modem that has this network interface."""
    import dbus  # noqa: PLC0415 - the system's Python has it, that of the tests does not
    import dbus.mainloop.glib  # noqa: PLC0415
    import dbus.service  # noqa: PLC0415
    from gi.repository import GLib  # noqa: PLC0415

    dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
    bus = dbus.SystemBus()
    path = f"{ROOT}/Modem/0"
    port = dbus.Struct([interface, dbus.UInt32(2)], signature="su")
    control = dbus.Struct(["cdc-wdm0", dbus.UInt32(6)], signature="su")
    properties = {
        f"{NAME}.Modem": {
            "Ports": dbus.Array([control, port], signature="(su)"),
            "State": dbus.Int32(11),
            "SignalQuality": dbus.Struct([dbus.UInt32(50), True], signature="ub"),
        },
        f"{NAME}.Modem.Modem3gpp": {"RegistrationState": dbus.UInt32(registration)},
    }

    class Modem(dbus.service.Object):
        @dbus.service.signal("org.freedesktop.DBus.Properties", signature="sa{sv}as")
        def PropertiesChanged(self, interface, changed, invalidated):
            pass

        def change(self, interface, name, value):
            properties[interface][name] = value
            self.PropertiesChanged(interface, {name: value}, dbus.Array([], signature="s"))

    class Manager(dbus.service.Object):
        def __init__(self, modem):
            super().__init__(bus, ROOT)
            self.modem = modem
            self.plugged = True

        @dbus.service.method("org.freedesktop.DBus.ObjectManager", out_signature="a{oa{sa{sv}}}")
        def GetManagedObjects(self):
            found = {dbus.ObjectPath(path): properties} if self.plugged else {}
            return dbus.Dictionary(found, signature="oa{sa{sv}}")

        @dbus.service.signal("org.freedesktop.DBus.ObjectManager", signature="oa{sa{sv}}")
        def InterfacesAdded(self, path, interfaces):
            pass

        @dbus.service.signal("org.freedesktop.DBus.ObjectManager", signature="oas")
        def InterfacesRemoved(self, path, interfaces):
            pass

        @dbus.service.method(TEST, in_signature="u")
        def Register(self, state):
            self.modem.change(f"{NAME}.Modem.Modem3gpp", "RegistrationState", dbus.UInt32(state))

        @dbus.service.method(TEST, in_signature="u")
        def Signal(self, quality):
            value = dbus.Struct([dbus.UInt32(quality), True], signature="ub")
            self.modem.change(f"{NAME}.Modem", "SignalQuality", value)

        @dbus.service.method(TEST)
        def Plug(self):
            self.plugged = True
            self.InterfacesAdded(path, properties)

        @dbus.service.method(TEST)
        def Unplug(self):
            self.plugged = False
            self.InterfacesRemoved(path, list(properties))

    Manager(Modem(bus, path))
    name = dbus.service.BusName(NAME, bus)
    print(f"{name.get_name()} is on the bus", flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
