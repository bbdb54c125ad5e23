"""Training schemas, second part: travel, trade, games and universities."""

from __future__ import annotations

from tunesmith.demo.tables import Domain, amount, category, label, link, measure, table, year

TRADE_AND_TRAVEL: tuple[Domain, ...] = (
    Domain(
        "railways",
        (
            table(
                "station",
                name=label(
                    "Central, Riverside, Parkway, Old Town, Airport North, Market Street, "
                    "Hillcrest, Docklands"
                ),
                city=category("Leeds, York, Derby"),
                capacity=amount(150, 2900),
            ),
            table(
                "train",
                name=label(
                    "Silver Arrow, Night Owl, Coast Express, Valley Runner, City Link, Blue "
                    "Comet, Red Dart, Sunrise, Highlander, Pioneer, Swift"
                ),
                operator=category("Northline, Expressway, Metrorail"),
                speed=measure(80, 310),
                station_id=link("station"),
            ),
        ),
    ),
    Domain(
        "hotels",
        (
            table(
                "hotel",
                name=label(
                    "Grand Plaza, Sea Breeze, Hotel Astoria, The Pines, Park Lodge, Royal Inn, "
                    "Hotel Bellevue, Sunset Resort, The Regent"
                ),
                city=category("Rome, Nice, Athens"),
                price=measure(45, 390),
            ),
            table(
                "guest",
                name=label(
                    "Aldo Bianchi, Brigit Olsen, Chloe Martin, Dimitri Volkov, Elif Demir, "
                    "Farah Aziz, Gary Stone, Hilda Maier, Isla Reid, Jorge Luna, Karin Falk, "
                    "Liam Doyle"
                ),
                country=category("Turkey, Russia, Sweden, Scotland"),
                age=measure(19, 84),
                bill=amount(60, 2400),
                hotel_id=link("hotel"),
            ),
        ),
    ),
    Domain(
        "geography",
        (
            table(
                "country",
                name=label(
                    "Arvania, Belmora, Corlund, Drestan, Elvaria, Fenland, Galdova, Hestia, Istria"
                ),
                continent=category("Europe, Africa, Asia"),
                population=amount(2, 140),
            ),
            table(
                "city",
                name=label(
                    "Alton, Brevik, Calder, Dorval, Esmund, Farley, Gorham, Hollis, Ilmen, "
                    "Jarrow, Keswick, Lorne"
                ),
                climate=category("dry, tropical, mild"),
                elevation=measure(4, 2600),
                country_id=link("country"),
            ),
            table(
                "river",
                name=label("Aun, Brisk, Clearwater, Drava, Elbow, Frome, Glint, Humber, Isen"),
                direction=category("north, south, east"),
                length=amount(70, 1900),
                country_id=link("country"),
            ),
        ),
    ),
    Domain(
        "banking",
        (
            table(
                "branch",
                name=label(
                    "Main Square, West End, Harbor Gate, Union Street, Mill Lane, Station Road, "
                    "Kings Cross, Green Park"
                ),
                district=category("Old Quarter, Riverside, Uptown"),
                profit=amount(14, 620),
            ),
            table(
                "account",
                holder=label(
                    "Abby Dean, Basil Cook, Carmen Vidal, Dylan Rees, Erin Walsh, Floyd Banks, "
                    "Gemma Price, Hector Cano, Imran Shah, Joan Little, Keith Marsh, Lila Noor"
                ),
                type=category("savings, checking, business"),
                balance=amount(110, 9800),
                opening_year=year(1998, 2023),
                branch_id=link("branch"),
            ),
        ),
    ),
    Domain(
        "pets",
        (
            table(
                "owner",
                name=label(
                    "Amir Nasser, Bonnie Clark, Carlos Peña, Daisy Ward, Ernest Hall, Freya "
                    "Dunn, Gordon Lee, Hazel Fisk"
                ),
                city=category("Dublin, Cork, Galway"),
                age=measure(17, 77),
            ),
            table(
                "pet",
                name=label(
                    "Biscuit, Cleo, Duke, Echo, Fluffy, Ginger, Hobbes, Izzy, Jasper, Kit, "
                    "Louie, Muffin"
                ),
                breed=category("poodle, siamese, beagle, persian"),
                weight=measure(2, 45),
                age=measure(1, 18),
                owner_id=link("owner"),
            ),
        ),
    ),
    Domain(
        "cycling",
        (
            table(
                "race",
                name=label(
                    "Coastal Tour, Alpine Loop, City Sprint, Desert Ride, Forest Trail, Island "
                    "Circuit, Lake Classic, Summit Day"
                ),
                country=category("Belgium, Spain, Austria"),
                distance=amount(40, 260),
            ),
            table(
                "rider",
                name=label(
                    "Arne Smet, Bart Claes, Ciro Gallo, Dirk Maes, Enzo Ricci, Fons Peeters, "
                    "Gael Roux, Hans Gruber, Iker Soto, Jonas Weber, Kris Nys"
                ),
                team=category("Falcons, Comets, Storm"),
                age=measure(20, 41),
                weight=measure(55, 90),
                race_id=link("race"),
            ),
        ),
    ),
    Domain(
        "videogames",
        (
            table(
                "studio",
                name=label(
                    "Pixel Forge, Night Fox, Iron Gate, Moonlab, Red Panda, Tall Tree, Blue "
                    "Castle, Wild Hare"
                ),
                country=category("Poland, Canada, Korea"),
                founding_year=year(1985, 2018),
            ),
            table(
                "game",
                title=label(
                    "Star Runner, Dragon Keep, Farm Days, Speed Zone, Dark Cave, Puzzle Park, "
                    "Sky War, Ocean Quest, Robo City, Ghost Manor, Chess King, Snow Racer"
                ),
                genre=category("puzzle, racing, adventure"),
                price=amount(5, 75),
                score=measure(3.1, 9.8),
                studio_id=link("studio"),
            ),
        ),
    ),
    Domain(
        "phones",
        (
            table(
                "brand",
                name=label("Novatel, Zentra, Orbix, Kiro, Lumina, Apexon, Vanto, Solari"),
                country=category("Finland, Taiwan, India"),
                revenue=amount(21, 840),
            ),
            table(
                "phone",
                model=label(
                    "Nova 5, Z One, Orbit X, Kiro Mini, Glow 3, Apex Pro, Vanto S, Sol 8, Nova "
                    "7, Z Two, Orbit Y"
                ),
                color=category("black, white, blue"),
                price=amount(120, 1400),
                weight=measure(130, 260),
                brand_id=link("brand"),
            ),
        ),
    ),
    Domain(
        "shipping",
        (
            table(
                "captain",
                name=label(
                    "Abel Thorne, Bjorn Dahl, Cyril Nash, Dina Marlow, Esko Virtanen, Farid "
                    "Nour, Gunnar Lind, Hal Morgan"
                ),
                nationality=category("Finnish, Dutch, Greek"),
                salary=amount(2600, 8900),
            ),
            table(
                "ship",
                name=label(
                    "Aurora, Boreas, Concordia, Dauntless, Endeavor, Fortuna, Galatea, "
                    "Hercules, Invicta, Juno, Kestrel"
                ),
                type=category("cargo, tanker, ferry"),
                length=measure(40, 390),
                capacity=amount(90, 4900),
                captain_id=link("captain"),
            ),
        ),
    ),
    Domain(
        "gardening",
        (
            table(
                "gardener",
                name=label(
                    "Agnes Moss, Burt Field, Clem Rose, Doris Hedge, Edwin Fern, Flo Meadow, "
                    "Gil Thorn, Hilda Bloom"
                ),
                village=category("Ashford, Milton, Oakley"),
                age=measure(25, 81),
            ),
            table(
                "plant",
                name=label(
                    "sunflower, lavender, rosemary, tulip, daisy, basil, peony, thyme, orchid, "
                    "mint, lily, sage"
                ),
                color=category("yellow, purple, green, red"),
                height=measure(12, 190),
                price=amount(2, 34),
                gardener_id=link("gardener"),
            ),
        ),
    ),
    Domain(
        "universities",
        (
            table(
                "university",
                name=label(
                    "Northfield, St Mark, Lakewood, Hillview, Eastbrook, Kingsley, Westlake, Ashton"
                ),
                state=category("Ohio, Texas, Maine"),
                enrollment=amount(900, 9900),
                founding_year=year(1790, 1975),
            ),
            table(
                "professor",
                name=label(
                    "Prof Ames, Prof Boyle, Prof Carr, Prof Dunne, Prof Ellis, Prof Frost, Prof "
                    "Gibbs, Prof Hayes, Prof Innes, Prof Joyce, Prof Knight"
                ),
                field=category("physics, law, medicine"),
                salary=amount(4100, 9900),
                university_id=link("university"),
            ),
            table(
                "student",
                name=label(
                    "Abe Long, Bess Carter, Cal Winters, Dot Harris, Eli Fowler, Fern Blake, "
                    "Gus Palmer, Hal Sutton, Ida Brooks, Jed Coleman, Kip Lawson, Liz Barton"
                ),
                major=category("chemistry, music, economics"),
                age=measure(17, 39),
                university_id=link("university"),
            ),
        ),
    ),
    Domain(
        "cars",
        (
            table(
                "maker",
                name=label("Altair, Bravado, Corsa Works, Dynamo, Everest, Fjord, Gazelle, Hermes"),
                country=category("Japan, Italy, Sweden"),
                revenue=amount(31, 760),
            ),
            table(
                "car",
                model=label(
                    "Bolt, Cruiser, Drift, Echo GT, Flash, Glide, Hornet, Impulse, Jetta X, "
                    "Koala, Leap, Mirage"
                ),
                fuel=category("petrol, diesel, electric"),
                price=amount(9000, 79000),
                power=measure(60, 420),
                maker_id=link("maker"),
            ),
        ),
    ),
    Domain(
        "newspapers",
        (
            table(
                "journalist",
                name=label(
                    "Alice Penn, Brian Shore, Celia Grant, Dave Archer, Edith Crowe, Farrah "
                    "Mills, Gene Tully, Holly Quinn, Ivan Brock"
                ),
                city=category("Chicago, Seattle, Dallas"),
                salary=amount(2200, 6900),
                age=measure(23, 66),
            ),
            table(
                "article",
                title=label(
                    "Budget Crisis, New Stadium, Clean Rivers, Market Crash, Cup Final, Green "
                    "Energy, Tax Reform, Marathon Day, Wild Bees, Trade Deal, Water Wars"
                ),
                topic=category("politics, sports, science"),
                length=amount(300, 2800),
                journalist_id=link("journalist"),
            ),
        ),
    ),
)
